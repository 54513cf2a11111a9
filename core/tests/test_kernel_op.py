"""A kernel becomes a torch op by one function: schema, fake and in-place form are those of the op that it computes."""

from __future__ import annotations

import inspect
import pickle
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from vllm_ir import errors, ops
from vllm_ir.isolation import isolated
from vllm_ir.staging import transaction

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.kernel_op import TorchOp

SPACE = "kernelled"
TOKENS = 3
SUM = ("x_residual",)
HALF_OF_CORE = "fused_add_rms_norm_static_quant_fp8"


def kernelled_one(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    """Return x times a factor; one result, which may lie in the one activation."""
    return x * factor


def kernelled_pair(x: torch.Tensor, x_residual: torch.Tensor, factor: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a sum times a factor, and the sum; as many results as activations."""
    total = x + x_residual
    return total * factor, total


def kernelled_three(
    x: torch.Tensor, x_residual: torch.Tensor, steps: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return whole numbers, a scale of each row, and the sum that they were made of."""
    total = x + x_residual
    scale = total.abs().amax(dim=-1, keepdim=True) / steps
    return (total / scale).round().to(torch.int8), scale, total


def kernelled_list(x: torch.Tensor, others: list[torch.Tensor], factor: float = 2.0) -> torch.Tensor:
    """Return a sum of tensors; an op without in-place form."""
    for other in others:
        x = x + other
    return x * factor


class Kernel:
    """A kernel by native: writes what it is given where it may and can, and remembers what it was asked.

    Attributes:
        calls: how many arguments came, and whether the last said that activations may be written.
    """

    def __init__(self, native: Callable[..., Any], written: tuple[int, ...] = (), *, writing: bool = True) -> None:
        self.native, self.written, self.writing = native, written, writing
        self.calls: list[tuple[int, bool]] = []

    def __call__(self, *args: Any) -> Any:
        """Return contiguous results."""
        *given, donated = args if self.written else (*args, False)
        self.calls.append((len(given), donated))
        results = self.native(*given)
        several = [each.clone() for each in (results if isinstance(results, tuple) else (results,))]
        if donated and self.writing:
            for place, i in enumerate(self.written, len(several) - len(self.written)):
                if given[i].is_contiguous():
                    several[place] = given[i].copy_(several[place])
        return tuple(several) if len(several) > 1 else several[0]


@pytest.fixture(scope="module")
def made() -> dict[str, tuple[TorchOp, Kernel]]:
    """Return torch ops of the ops above, with their kernels; torch keeps them until the process ends."""
    with isolated():
        one = vllm_ir.register_op(allow_inplace=True)(kernelled_one)
        pair = vllm_ir.register_op(allow_inplace=True)(kernelled_pair)
        vllm_ir.register_op(allow_inplace=True)(kernelled_three)
        vllm_ir.register_op(kernelled_list)
        kernels = {
            "one": Kernel(kernelled_one, (0,)),
            "pair": Kernel(kernelled_pair, (0, 1)),
            "three": Kernel(kernelled_three, (1,)),
            "list": Kernel(kernelled_list),
        }
        found = {
            "one": vllm_ir.make_torch_op(one, kernels["one"], namespace=SPACE),
            "pair": vllm_ir.make_torch_op(pair, kernels["pair"], namespace=SPACE, device_types="cpu"),
            "three": vllm_ir.make_torch_op(
                "kernelled_three", kernels["three"], namespace=SPACE, device_types=["cpu", "cuda"], writes=SUM
            ),
            "list": vllm_ir.make_torch_op("kernelled_list", kernels["list"], namespace=SPACE),
        }
    return {name: (each, kernels[name]) for name, each in found.items()}


def arguments(name: str) -> tuple[Any, ...]:
    """Return the arguments of a call that leaves the defaults out."""
    x, residual = torch.randn(TOKENS, 8), torch.randn(TOKENS, 8)
    return {"one": (x,), "pair": (x, residual), "three": (x, residual), "list": (x, [residual, x])}[name]


def several(results: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def same(got: Any, wanted: Any) -> None:
    """Require equal results."""
    for one, other in zip(several(got), several(wanted), strict=True):
        as_bits = torch.uint8 if one.element_size() == 1 else one.dtype
        assert torch.equal(one.view(as_bits), other.view(as_bits))


def clones(args: Any) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(
        list(clones(arg)) if isinstance(arg, list) else arg.clone() if isinstance(arg, torch.Tensor) else arg
        for arg in args
    )


NATIVES: dict[str, Callable[..., Any]] = {
    "one": kernelled_one,
    "pair": kernelled_pair,
    "three": kernelled_three,
    "list": kernelled_list,
}
WRITING = ("one", "pair", "three")


def test_the_schemas_are_the_ops_own(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """And the form that writes says what it writes, and returns what is left over."""
    defined = {name: each.functional._opoverload._schema for name, (each, _) in made.items()}
    wanted = "kernelled::kernelled_three(Tensor x, Tensor x_residual, SymInt steps=4) -> (Tensor, Tensor, Tensor)"
    assert str(defined["three"]) == wanted
    writing = {name: each.inplace and str(each.inplace._opoverload._schema) for name, (each, _) in made.items()}
    assert writing == {
        "one": "kernelled::kernelled_one_(Tensor(a0!) x, float factor=2.) -> ()",
        "pair": "kernelled::kernelled_pair_(Tensor(a0!) x, Tensor(a1!) x_residual, float factor=2.) -> ()",
        "three": "kernelled::kernelled_three_(Tensor x, Tensor(a1!) x_residual, SymInt steps=4) -> (Tensor, Tensor)",
        "list": None,
    }
    assert repr(made["one"][0]) == "<torch op kernelled::kernelled_one>"


@pytest.mark.parametrize("name", NATIVES)
@pytest.mark.parametrize("form", ["functional", "inplace"])
def test_torch_finds_no_fault(made: dict[str, tuple[TorchOp, Kernel]], name: str, form: str) -> None:
    """Schema, fake, autograd registration, and use under AOTAutograd with changing sizes."""
    definition = getattr(made[name][0], form)
    if definition is not None:
        opcheck(definition, arguments(name))


@pytest.mark.parametrize("name", NATIVES)
def test_a_call_writes_nothing_and_gets_all_arguments(made: dict[str, tuple[TorchOp, Kernel]], name: str) -> None:
    """Torch leaves out what is given as its default; the kernel is called with it."""
    torch_op, kernel = made[name]
    args = arguments(name)
    before = clones(args)
    kernel.calls.clear()
    same(torch_op(*args), NATIVES[name](*before))
    parameters = len(inspect.signature(NATIVES[name]).parameters)
    assert kernel.calls == [(parameters, False)]
    for one, other in zip(args, before, strict=True):
        same(one, other)


@pytest.mark.parametrize("name", WRITING)
def test_donating_returns_what_was_written(made: dict[str, tuple[TorchOp, Kernel]], name: str) -> None:
    """The last results are the donated tensors themselves, and the others are new."""
    torch_op, kernel = made[name]
    args = arguments(name)
    wanted = NATIVES[name](*clones(args))
    kernel.calls.clear()
    got = several(torch_op.donating(*args))
    same(got, wanted)
    written = [args[place] for place in kernel.written]
    assert all(one is other for one, other in zip(got[-len(written) :], written, strict=True))
    assert [donated for _, donated in kernel.calls] == [True]


@pytest.mark.parametrize("name", WRITING)
def test_what_does_not_lie_side_by_side_is_left_alone(made: dict[str, tuple[TorchOp, Kernel]], name: str) -> None:
    """Neither its own elements nor those between them change, and the results are new tensors."""
    torch_op, kernel = made[name]
    args = tuple(torch.randn(TOKENS, 2, 8)[:, 1] for _ in arguments(name))
    before = clones(args)
    kernel.calls.clear()
    same(torch_op.donating(*args), NATIVES[name](*before))
    assert [donated for _, donated in kernel.calls] == [False]
    for one, other in zip(args, before, strict=True):
        same(one, other)


def test_one_tensor_donated_twice_is_left_alone(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """Two results cannot lie in it; that holds for two views of it as well, and under Dynamo for the tensor itself."""
    torch_op, _ = made["pair"]
    both = torch.randn(3, 8)
    before = both.clone()
    same(torch_op.donating(both, both), kernelled_pair(before, before))
    same(torch_op.donating(both[:], both[:]), kernelled_pair(before, before))
    same(torch_op.donating(both[:2], both[1:]), kernelled_pair(before[:2], before[1:]))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: torch_op.donating(x, x), backend="aot_eager", fullgraph=True)
    same(compiled(both), kernelled_pair(before, before))
    same(both, before)


def test_neighbours_in_one_memory_are_written(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """Rows beside each other share a storage and no element, so each can hold a result."""
    both = torch.randn(2, 8)
    wanted = kernelled_pair(both[0].clone(), both[1].clone())
    same(made["pair"][0].donating(both[0], both[1]), wanted)
    same(tuple(both), wanted)


@pytest.mark.parametrize("traced", [False, True])
def test_what_another_argument_lies_in_is_left_alone(made: dict[str, tuple[TorchOp, Kernel]], *, traced: bool) -> None:
    """A tensor that is only read shares the memory of the one that may be written."""
    torch_op, kernel = made["three"]
    memory = torch.randn(TOKENS + 1, 8)
    before = memory.clone()
    kernel.calls.clear()

    def run(memory: torch.Tensor) -> Any:
        """Donate a part of a memory that the other argument reaches into."""
        return torch_op.donating(memory[:-1], memory[1:])

    if traced:
        graph = make_fx(run, tracing_mode="fake")(memory)
        assert [str(node.target) for node in graph.graph.nodes if "kernelled" in str(node.target)] == [
            "kernelled.kernelled_three.default"
        ]
    else:
        same(run(memory), kernelled_three(before[:-1], before[1:]))
        assert [donated for _, donated in kernel.calls] == [False]
    same(memory, before)


def test_dynamo_sees_an_argument_that_is_given_twice(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """It is told by what is the same, without a guard on anything else."""
    torch_op, _ = made["three"]
    torch.compiler.reset()
    x = torch.randn(TOKENS, 8)
    before = x.clone()
    compiled = torch.compile(lambda x: torch_op.donating(x, x), backend="aot_eager", fullgraph=True, dynamic=True)
    same(compiled(x), kernelled_three(before, before))
    same(x, before)


@pytest.mark.parametrize("name", WRITING)
def test_a_kernel_that_writes_nothing_has_its_results_copied(name: str) -> None:
    """The form that writes keeps its promise to whoever traces, whatever the kernel could do."""
    native = NATIVES[name]

    def renamed(*args: Any) -> Any:
        """Be native under another name."""
        return native(*args)

    written = {"one": (0,), "pair": (0, 1), "three": (1,)}[name]
    with isolated():
        op = vllm_ir.register_op(name=f"kernelled_{name}_copied", allow_inplace=True)(native)
        kernel = Kernel(renamed, written, writing=False)
        torch_op = vllm_ir.make_torch_op(
            op, kernel, namespace=SPACE, device_types="cpu", writes=SUM if name == "three" else None
        )
    args = tuple(torch.randn(TOKENS, 2, 8)[:, 1] for _ in arguments(name))
    wanted = several(native(*clones(args)))
    assert torch_op.inplace is not None
    left = torch_op.inplace(*args)
    same((*several([] if left is None else left), *(args[place] for place in written)), wanted)


@pytest.mark.parametrize("name", WRITING)
def test_functionalisation_sees_what_is_written(made: dict[str, tuple[TorchOp, Kernel]], name: str) -> None:
    """In one graph of Dynamo, with open sizes: what reads a donated tensor's memory afterwards reads the result."""
    torch_op, kernel = made[name]
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()

    def run(*args: torch.Tensor) -> Any:
        """Give away copies, and look at them afterwards."""
        given = [arg + 1 for arg in args]
        results = several(torch_op.donating(*given))
        return (*results, *(given[place] * 2 for place in kernel.written))

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (TOKENS, 5):
        args = tuple(torch.randn(rows, 8) for _ in arguments(name))
        same(compiled(*args), run(*args))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", NATIVES)
def test_there_is_no_gradient(made: dict[str, tuple[TorchOp, Kernel]], name: str) -> None:
    """Dispatch gives natives' gradients, and asks no kernel; who asks it directly is told so."""
    args = arguments(name)
    result = several(made[name][0](args[0].requires_grad_(), *args[1:]))[-1]
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        result.sum().backward()


@pytest.mark.parametrize("name", WRITING)
def test_donating_gives_no_false_gradient(made: dict[str, tuple[TorchOp, Kernel]], name: str) -> None:
    """What would be written keeps the history of what it was; so nothing is, and torch says that there is none."""
    torch_op, kernel = made[name]
    leaves = arguments(name)
    before = clones(leaves)
    given = [leaf.requires_grad_() * 1 for leaf in leaves]
    kernel.calls.clear()
    results = several(torch_op.donating(*given))
    assert [donated for _, donated in kernel.calls] == [False]
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        results[-1].sum().backward()
    with torch.no_grad():
        same(torch_op.donating(*given), NATIVES[name](*before))
    assert [donated for _, donated in kernel.calls] == [False, True]


# What a kernel returns, and where.


def summed_into_x(x: torch.Tensor, r: torch.Tensor, factor: float, donated: bool) -> tuple[torch.Tensor, ...]:
    """Return a new product, and the sum in the other activation."""
    total = x.add_(r) if donated else x + r
    return total * factor, total


def swapped(x: torch.Tensor, r: torch.Tensor, factor: float, donated: bool) -> tuple[torch.Tensor, ...]:
    """Return both in each other's places."""
    total = x.add_(r) if donated else x + r
    product = total * factor
    return (r.copy_(product) if donated else product), total


def in_views(x: torch.Tensor, r: torch.Tensor, factor: float, donated: bool) -> tuple[torch.Tensor, ...]:
    """Return views of each other's places."""
    return tuple(each[:] if donated else each for each in swapped(x, r, factor, donated))


def in_place_views(x: torch.Tensor, r: torch.Tensor, factor: float, donated: bool) -> tuple[torch.Tensor, ...]:
    """Return views of their own places."""
    total = r.add_(x) if donated else x + r
    product = total * factor
    return (x.copy_(product)[:] if donated else product), total[:] if donated else total


ELSEWHERE: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (summed_into_x, swapped, in_views, in_place_views)
}


@pytest.mark.parametrize("how", ELSEWHERE)
@pytest.mark.parametrize("writes", ["both", "the sum"])
def test_results_lie_in_their_places_wherever_they_were_returned(how: str, writes: str) -> None:
    """None is copied over another one that waits to be copied."""
    with isolated():
        op = vllm_ir.register_op(name=f"kernelled_{how}_{writes[-3:]}", allow_inplace=True)(kernelled_pair)
        written = None if writes == "both" else SUM
        kernel = ELSEWHERE[how]
        if writes != "both":
            kernel = without_x(kernel)
        torch_op = vllm_ir.make_torch_op(op, kernel, namespace=SPACE, writes=written)
    args = arguments("pair")
    wanted = kernelled_pair(*clones(args))
    got = torch_op.donating(*args)
    same(got, wanted)
    assert got[1] is args[1]
    assert writes != "both" or got[0] is args[0]


def without_x(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that leaves x alone, as one has to that may write the residual only."""

    def run(x: torch.Tensor, *more: Any) -> Any:
        """Give it a copy."""
        return kernel(x.clone(), *more)

    return run


def test_a_graphs_argument_may_lie_in_what_it_writes(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """Torch makes no other graph for such a call, so the kernel is not let write there, and its results are copied."""
    torch_op, kernel = made["three"]
    graph = make_fx(torch_op.donating, tracing_mode="fake")(*arguments("three"))
    memory = torch.randn(TOKENS + 1, 8)
    before = memory.clone()
    kernel.calls.clear()
    same(graph(memory[:-1], memory[1:]), kernelled_three(before[:-1], before[1:]))
    assert kernel.calls[-1][1] is False


@pytest.mark.parametrize("shift", [0, 1])
def test_two_results_in_one_memory_are_refused_by_a_graph(made: dict[str, tuple[TorchOp, Kernel]], shift: int) -> None:
    """One that was made for separate tensors is given two views; silence would be a wrong result."""
    torch_op, _ = made["pair"]
    graph = make_fx(torch_op.donating, tracing_mode="fake")(*arguments("pair"))
    memory = torch.randn(TOKENS + 1, 8)
    with pytest.raises(errors.SharedDonation) as caught:
        graph(memory[:TOKENS], memory[shift : TOKENS + shift])
    assert str(caught.value) == (
        "Torch op 'kernelled::kernelled_pair_' of op 'kernelled_pair' writes 'x' and 'x_residual', which lie in the"
        " same memory: it cannot hold both results. A graph that was made for tensors of their own is not made anew for"
        " such; donate copies, or call the op without donating."
    )
    assert str(copied(caught.value)) == str(caught.value)


# The ops of core, whose natives are the fakes.


@pytest.fixture(scope="module")
def of_core() -> dict[str, TorchOp]:
    """Return a torch op for each op of core, whose kernel is native with contiguous results."""
    found = {}
    for name in ops.__all__:
        op = getattr(ops, name)
        quantising = "quant" in name
        written = () if not op.allow_inplace else (1,) if quantising else tuple(op.activation_indices)
        kernel = Kernel(op.declaration.native, written)
        writes = SUM if quantising and op.allow_inplace else None
        found[name] = vllm_ir.make_torch_op(name, laid_out(kernel), namespace=f"{SPACE}_core", writes=writes)
    return found


def laid_out(kernel: Kernel) -> Callable[..., Any]:
    """Return a kernel whose inputs are contiguous, as those of kernels are that make contiguous results."""

    def run(*args: Any) -> Any:
        """Run it on copies of what lies otherwise."""
        return kernel(*(arg.contiguous() if isinstance(arg, torch.Tensor) else arg for arg in args))

    return run


def given_to(name: str) -> tuple[Any, ...]:
    """Return arguments of an op of core; scales of groups are column-major, where a layout could be lost."""
    args: tuple[Any, ...] = getattr(ops, name).generate_inputs(num_tokens=TOKENS, hidden_size=64)
    return (args[0], 16, True, *args[3:]) if "group" in name else args


@pytest.mark.parametrize("name", ops.__all__)
@pytest.mark.parametrize("form", ["functional", "inplace"])
def test_torch_finds_no_fault_with_ops_of_core(of_core: dict[str, TorchOp], name: str, form: str) -> None:
    """Native tells the shape, the dtype and the strides of every result."""
    definition = getattr(of_core[name], form)
    if definition is not None:
        opcheck(definition, clones(given_to(name)))


@pytest.mark.parametrize("name", ops.__all__)
def test_the_fake_lies_as_a_kernel_lays_its_results(of_core: dict[str, TorchOp], name: str) -> None:
    """Also for arguments whose leading dimensions are in another order, whose strides native's operations keep."""
    args = tuple(
        torch.randn(4, TOKENS, 64).transpose(0, 1)
        if isinstance(arg, torch.Tensor) and arg.shape == (TOKENS, 64)
        else arg
        for arg in given_to(name)
    )
    if "positions" in getattr(ops, name).declaration.signature.names:
        args = (torch.zeros(TOKENS, 4, dtype=torch.int64), *args[1:])
    real = several(of_core[name](*args))
    with FakeTensorMode() as mode:
        fake = several(
            of_core[name](*(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args))
        )
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


@pytest.mark.parametrize("name", ops.__all__)
def test_no_size_is_asked_for(of_core: dict[str, TorchOp], name: str) -> None:
    """An exported program takes any number of tokens, and computes what native does."""
    torch_op = of_core[name]
    args = given_to(name)
    where = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def filled(tensors: tuple[Any, ...]) -> list[Any]:
        """Return the arguments with other tensors in them."""
        supply = dict(zip(where, tensors, strict=True))
        return [supply.get(i, arg) for i, arg in enumerate(args)]

    class Model(torch.nn.Module):
        """Calls the torch op."""

        def forward(self, *tensors: Any) -> Any:
            """Run it."""
            return torch_op(*filled(tensors))

    given = tuple(args[i] for i in where)
    of_tokens = [arg.dim() > 0 and arg.shape[0] == TOKENS for arg in given]
    dynamic = tuple({0: torch.export.Dim.DYNAMIC} if each else None for each in of_tokens)
    program = torch.export.export(Model(), given, dynamic_shapes=(dynamic,))
    called = [node.target for node in program.graph.nodes if "kernelled" in str(node.target)]
    assert called == [torch_op.functional._opoverload]
    many = tuple(torch.cat([arg] * 7) if each else arg for arg, each in zip(given, of_tokens, strict=True))
    same(program.module()(*many), getattr(ops, name).declaration.native(*filled(many)))


def test_a_trace_of_a_donating_call_has_one_node(of_core: dict[str, TorchOp]) -> None:
    """With open sizes; no size is compared, so the graph serves every batch."""
    x, residual, weight, epsilon, *_ = given_to("fused_add_rms_norm")

    def run(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        """Give both away."""
        return of_core["fused_add_rms_norm"].donating(x, residual, weight, epsilon)

    graph = make_fx(run, tracing_mode="symbolic")(x.clone(), residual.clone(), weight)
    names = [str(node.target) for node in graph.graph.nodes if "kernelled" in str(node.target)]
    assert names == ["kernelled_core.fused_add_rms_norm_.default"]
    more = torch.randn(9, 64), torch.randn(9, 64)
    same(graph(*clones(more), weight), ops.fused_add_rms_norm.declaration.native(*more, weight, epsilon))


def test_a_fake_of_ones_own_is_asked() -> None:
    """Where native would take long to trace; it gets all arguments, and the form that writes takes its part."""
    asked = []

    def fake(x: torch.Tensor, x_residual: torch.Tensor, steps: int) -> tuple[torch.Tensor, ...]:
        """Tell what results are like."""
        asked.append(steps)
        return x.new_empty(x.shape, dtype=torch.int8), x.new_empty((*x.shape[:-1], 1)), x_residual.new_empty(x.shape)

    with isolated():
        op = vllm_ir.register_op(name="kernelled_faked", allow_inplace=True)(kernelled_three)
        torch_op = vllm_ir.make_torch_op(op, Kernel(kernelled_three, (1,)), namespace=SPACE, writes=SUM, fake=fake)
    for definition in (torch_op.functional, torch_op.inplace):
        assert definition is not None
        opcheck(definition, arguments("three"))
    assert set(asked) == {4}


def test_a_kernel_that_never_writes_takes_no_flag() -> None:
    """Of an op that allows in-place, too: there is no second form then."""
    with isolated():
        op = vllm_ir.register_op(name="kernelled_unwritten", allow_inplace=True)(kernelled_pair)
        torch_op = vllm_ir.make_torch_op(op, kernelled_pair, namespace=SPACE, writes=())
    args = arguments("pair")
    same(torch_op(*args), kernelled_pair(*args))
    assert torch_op.inplace is None
    assert not hasattr(torch.ops.kernelled, "kernelled_unwritten_")


def test_an_op_of_the_distribution_that_is_loading_is_found() -> None:
    """A distribution may bring an op and a kernel of it at once."""
    with isolated():
        with transaction("some-distribution"):
            vllm_ir.register_op(name="kernelled_staged")(kernelled_one)
            torch_op = vllm_ir.make_torch_op("kernelled_staged", kernelled_one, namespace=SPACE)
        same(torch_op(torch.ones(2)), torch.full((2,), 2.0))


def test_importing_the_core_defines_nothing() -> None:
    """The module comes in with the first kernel that is made a torch op."""
    code = "import sys, vllm_ir, vllm_ir.ops; print('vllm_ir.kernel_op' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


# Mistakes.


def copied(error: BaseException) -> Any:
    """Return what another process gets of an error."""
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - made in this line


def make(op: Any = "rms_norm", kernel: Any = kernelled_one, **more: Any) -> TorchOp:
    """Make a torch op in a namespace where nothing is."""
    return vllm_ir.make_torch_op(op, kernel, **{"namespace": f"{SPACE}_mistakes", **more})


WHO = "torch op 'kernelled_mistakes::rms_norm'"
WHO_ELSE = f"torch op 'kernelled_mistakes::{HALF_OF_CORE}'"
MISTAKES: dict[str, tuple[dict[str, Any], type[errors.IrError], str]] = {
    "unknown op": ({"op": "rms_nrom"}, errors.UnknownOp, "Did you mean 'rms_norm'?"),
    "namespace": (
        {"namespace": "my-kernels"},
        errors.BadName,
        "Torch namespace name 'my-kernels' is not legal: wanted a lower-case letter or underscore",
    ),
    "kernel": ({"kernel": 5}, errors.BadValue, f"{WHO}: kernel is 5, wanted a function of the op's arguments."),
    "no kernel": (
        {"kernel": None},
        errors.BadValue,
        f"{WHO}: kernel is None, wanted a function of the op's arguments.",
    ),
    "fake": ({"fake": 5}, errors.BadValue, f"{WHO}: fake is 5, wanted a function of the op's arguments."),
    "device": (
        {"device_types": ["cpu", "gpu"]},
        errors.BadValue,
        f"{WHO}: device_types is 'gpu', wanted device types of torch, such as 'cuda'.",
    ),
    "device with a number": (
        {"device_types": "cuda:0"},
        errors.BadValue,
        f"{WHO}: device_types is 'cuda:0', wanted device types of torch, such as 'cuda'.",
    ),
    "writes of an op that writes nothing": (
        {"writes": ["x"]},
        errors.BadValue,
        f"{WHO}: writes is ['x'], wanted None: the op has no in-place form.",
    ),
    "writes what is no activation": (
        {"op": HALF_OF_CORE, "writes": ["weight"]},
        errors.BadValue,
        f"{WHO_ELSE}: writes is ['weight'], wanted some of the activations ('x', 'x_residual').",
    ),
    "writes as a number": (
        {"op": HALF_OF_CORE, "writes": 5},
        errors.BadValue,
        f"{WHO_ELSE}: writes is 5, wanted some of the activations ('x', 'x_residual').",
    ),
    "writes as numbers": (
        {"op": HALF_OF_CORE, "writes": [0]},
        errors.BadValue,
        f"{WHO_ELSE}: writes is [0], wanted some of the activations ('x', 'x_residual').",
    ),
    "device as a number": (
        {"device_types": 5},
        errors.BadValue,
        f"{WHO}: device_types is 5, wanted device types of torch, such as 'cuda'.",
    ),
    "devices as numbers": (
        {"device_types": [1]},
        errors.BadValue,
        f"{WHO}: device_types is 1, wanted device types of torch, such as 'cuda'.",
    ),
    "writes as one text": (
        {"op": HALF_OF_CORE, "writes": "x"},
        errors.BadValue,
        f"{WHO_ELSE}: writes is 'x', wanted some of the activations ('x', 'x_residual').",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_sentence_and_defines_nothing(mistake: str) -> None:
    """Before torch hears of it."""
    given, kind, sentence = MISTAKES[mistake]
    with pytest.raises(kind, match=re.escape(sentence)):
        make(**given)
    assert not hasattr(torch.ops.kernelled_mistakes, given.get("op", "rms_norm"))


def test_an_op_is_no_number() -> None:
    """It is asked for by its name, or is itself."""
    with pytest.raises(errors.BadValue) as caught:
        make(5)
    assert str(caught.value) == "A torch op in namespace 'kernelled_mistakes': op is 5, wanted an op or its name."


@pytest.mark.parametrize(
    ("namespace", "reason"),
    [
        ("load_library", "torch.ops has an attribute of that name"),
        ("loaded_libraries", "torch.ops has an attribute of that name"),
        ("_dir", "torch.ops has an attribute of that name"),
        ("higher_order", "torch.ops has an attribute of that name"),
        ("__name__", "torch.ops has an attribute of that name"),
        ("aten", "torch has ops of its own there; choose another"),
        ("prims", "torch has ops of its own there; choose another"),
        ("c10d", "torch has ops of its own there; choose another"),
        ("torch", "torch has ops of its own there; choose another"),
        ("vllm_ir", "vllm-ir has ops of its own there; choose another"),
    ],
)
def test_a_namespace_that_is_somebodys_is_refused(namespace: str, reason: str) -> None:
    """Before anything is defined in it, or torch.ops asked for it."""
    before = set(vars(torch.ops))
    with pytest.raises(errors.BadName) as caught:
        make(namespace=namespace)
    assert str(caught.value) == f"Torch namespace name {namespace!r} is not legal: {reason}. Rename it."
    assert set(vars(torch.ops)) == before


def test_all_attributes_of_torch_ops_are_refused() -> None:
    """Whatever this torch has there that is no namespace of ops."""
    code = (
        "import torch\n"
        "spaces = {name for name, value in vars(torch.ops).items() if type(value) is type(torch.ops.aten)}\n"
        "found = {*vars(torch.ops), *dir(type(torch.ops))} - spaces\n"
        "from vllm_ir.names import check_torch_namespace\n"
        "from vllm_ir.errors import BadName\n"
        "def legal(name):\n"
        "    try:\n"
        "        check_torch_namespace(name)\n"
        "    except BadName:\n"
        "        return False\n"
        "    return True\n"
        "print(sorted(filter(legal, found)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_second_definition_is_refused(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """Torch would take the first one down under graphs that hold it; the form that writes is asked for, too."""
    assert made
    with isolated():
        op = vllm_ir.register_op(allow_inplace=True)(kernelled_pair)
        with pytest.raises(errors.TorchNameTaken) as caught:
            make(op, namespace=SPACE)
        library = torch.library.Library(f"{SPACE}_taken", "FRAGMENT")
        library.define("kernelled_pair_(Tensor x) -> Tensor")
        with pytest.raises(errors.TorchNameTaken, match=f"{SPACE}_taken::kernelled_pair_"):
            make(op, namespace=f"{SPACE}_taken")
        assert not hasattr(getattr(torch.ops, f"{SPACE}_taken"), "kernelled_pair")
    assert str(caught.value) == (
        "A kernel of op 'kernelled_pair' cannot become torch op 'kernelled::kernelled_pair': that one is defined"
        " already. Make it once, at the top of a module, or choose a namespace of your own."
    )
    assert str(copied(caught.value)) == str(caught.value)


def test_donating_to_an_op_without_in_place_form_is_an_error(made: dict[str, tuple[TorchOp, Kernel]]) -> None:
    """With the op and the way out."""
    with pytest.raises(errors.NoInplaceForm) as caught:
        made["list"][0].donating(*arguments("list"))
    assert str(caught.value) == (
        "Torch op 'kernelled::kernelled_list' has no form that writes its inputs: op 'kernelled_list' does not allow"
        " in-place, or it was made with writes=(). Call it without donating."
    )
    assert str(copied(caught.value)) == str(caught.value)


def test_a_result_that_does_not_fit_where_it_is_to_lie_is_an_error() -> None:
    """Copying would convert it; the sentence says what came, what it is for, and how to say which are written."""
    with isolated():
        op = vllm_ir.register_op(name="kernelled_unfit", allow_inplace=True)(kernelled_three)
        torch_op = vllm_ir.make_torch_op(op, Kernel(kernelled_three, (0, 1), writing=False), namespace=SPACE)
    with pytest.raises(errors.UnfitResult) as caught:
        torch_op.donating(*arguments("three"))
    assert str(caught.value) == (
        "Torch op 'kernelled::kernelled_unfit_': kernel 'Kernel' of op 'kernelled_unfit' returned torch.float32 [3, 1]"
        " on cpu as result 2 of 3, wanted torch.float32 [3, 8] on cpu as 'x' is. Name in writes=[...] the activations"
        " that its last results come to lie in."
    )
    assert str(copied(caught.value)) == str(caught.value)


def first_of(change: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
    """Return a kernel that changes the first of two results."""

    def kernel(*args: Any) -> Any:
        """Compute as native does."""
        product, total = kernelled_pair(*args[:3])
        return change(product), total

    return kernel


def whole(change: Callable[[tuple[torch.Tensor, ...]], Any]) -> Callable[..., Any]:
    """Return a kernel that changes all of its results."""

    def kernel(*args: Any) -> Any:
        """Compute as native does."""
        return change(kernelled_pair(*args[:3]))

    return kernel


TOLD = "torch.float32 [3, 8], contiguous"
UNFIT: dict[str, tuple[Callable[..., Any], str, str]] = {
    "few": (whole(lambda results: results[0]), "1 result", "2 results"),
    "many": (whole(lambda results: (*results, results[0].clone())), "3 results", "2 results"),
    "none": (whole(lambda _: None), "None", "2 results"),
    "number": (first_of(lambda _: 5), "int as result 1 of 2", "a tensor"),
    "array": (first_of(lambda x: x.numpy()), "ndarray as result 1 of 2", "a tensor"),
    "dtype": (first_of(lambda x: x.bfloat16()), "torch.bfloat16 [3, 8] on cpu as result 1 of 2", TOLD),
    "dims": (first_of(lambda x: x.view(-1)), "torch.float32 [24] on cpu as result 1 of 2", TOLD),
    "sizes": (first_of(lambda x: x[:2].clone()), "torch.float32 [2, 8] on cpu as result 1 of 2", TOLD),
    "device": (first_of(lambda x: x.to("meta")), "torch.float32 [3, 8] on meta as result 1 of 2", f"{TOLD} on cpu"),
    "layout": (
        first_of(lambda x: x.t().contiguous().t()),
        "torch.float32 [3, 8] on cpu, not contiguous as result 1 of 2",
        TOLD,
    ),
}


@pytest.mark.parametrize("how", UNFIT)
@pytest.mark.parametrize("inplace", [False, True])
def test_a_result_that_is_not_as_torch_was_told_is_an_error(how: str, *, inplace: bool) -> None:
    """Compiled code would read past it, or its bits as another dtype; both forms say what came and what was told."""
    kernel, got, wanted = UNFIT[how]
    name = f"kernelled_told_{how}_{'written' if inplace else 'new'}"
    with isolated():
        op = vllm_ir.register_op(name=name, allow_inplace=True)(kernelled_pair)
        torch_op = vllm_ir.make_torch_op(op, kernel, namespace=SPACE, writes=SUM if inplace else ())
    with pytest.raises(errors.UnfitResult) as caught:
        (torch_op.donating if inplace else torch_op)(*arguments("pair"))
    assert str(caught.value) == (
        f"Torch op 'kernelled::{name}{'_' if inplace else ''}': kernel 'kernel' of op {name!r} returned {got}, wanted"
        f" {wanted}. Let it return what the op's fake promises, or tell make_torch_op by fake= what it returns."
    )
    assert str(copied(caught.value)) == str(caught.value)


def test_the_fake_is_asked_once_for_each_combination_of_dtypes() -> None:
    """It takes milliseconds, and a graph that was compiled pays for every call; how many results there are is seen."""
    asked = []

    def fake(x: torch.Tensor, factor: float) -> torch.Tensor:
        """Tell what the result is like."""
        asked.append(factor)
        return x.new_empty(x.shape)

    def kernel(x: torch.Tensor, factor: float) -> Any:
        """Return another dtype for what is not float32, and a second result for many rows."""
        result = (x * factor).to(torch.float32)
        return (result, result) if len(x) > 8 else result

    with isolated():
        op = vllm_ir.register_op(name="kernelled_many_sizes")(kernelled_one)
        torch_op = vllm_ir.make_torch_op(op, kernel, namespace=SPACE, fake=fake)
    for rows in range(1, 9):
        same(torch_op(torch.ones(rows, 2)), torch.full((rows, 2), 2.0))
    assert len(asked) == 1
    with pytest.raises(errors.UnfitResult, match="2 results, wanted 1 result"):
        torch_op(torch.ones(9, 2))
    with pytest.raises(errors.UnfitResult, match=r"float32 \[1, 2\] on cpu, wanted torch.float64"):
        torch_op(torch.ones(1, 2, dtype=torch.float64))
    assert len(asked) == 2


def test_under_autocast_the_fake_is_not_asked() -> None:
    """Autocast casts what a kernel calls, and the stand-ins of the fake are of no device that it knows."""
    asked = []

    def fake(x: torch.Tensor, factor: float) -> torch.Tensor:
        """Tell what the result is like."""
        asked.append(factor)
        return x.new_empty(x.shape)

    with isolated():
        op = vllm_ir.register_op(name="kernelled_autocast")(kernelled_one)
        torch_op = vllm_ir.make_torch_op(op, kernelled_one, namespace=SPACE, fake=fake)
    with torch.autocast("cpu", torch.bfloat16):
        torch_op(torch.ones(2, 2))
    assert asked == []
    torch_op(torch.ones(2, 2))
    assert len(asked) == 1


def test_a_list_of_results_is_as_good_as_a_tuple() -> None:
    """And one result may come in either."""
    with isolated():
        pair = vllm_ir.register_op(name="kernelled_listed")(kernelled_pair)
        one = vllm_ir.register_op(name="kernelled_listed_one")(kernelled_one)
        listed = vllm_ir.make_torch_op(pair, whole(list), namespace=SPACE)
        single = vllm_ir.make_torch_op(one, lambda x, factor: [x * factor], namespace=SPACE)
    args = arguments("pair")
    same(listed(*args), kernelled_pair(*args))
    same(single(args[0]), kernelled_one(args[0]))
