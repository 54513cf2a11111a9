"""Under a tracer each kernel is one node with a true fake; eager calls pass the dispatcher by.

The ops are for tensors of a GPU; here they get the same functions for the CPU, where native does what a launch asks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from vllm_ir import ops
from vllm_ir_provider_triton import invariant, kernels, loading, torch_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_provider_triton.variants import Launch

TOKENS = 3
NEOX = True
ACTIVATIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.nn.functional.silu,
    torch.nn.functional.gelu,
    partial(torch.nn.functional.gelu, approximate="tanh"),
)

CASES: dict[str, Callable[..., Any]] = {
    "rms_norm": kernels.rms_norm.impl_fn,
    "fused_add_rms_norm": kernels.fused_add_rms_norm.impl_fn,
    "functional_fused_add_rms_norm": kernels.functional_fused_add_rms_norm,
    "silu_and_mul": kernels.silu_and_mul.impl_fn,
    "gelu_and_mul": kernels.gelu_and_mul.impl_fn,
    "rotary_embedding": kernels.rotary_embedding.impl_fn,
    "functional_rotary_embedding": kernels.functional_rotary_embedding,
    "invariant_rms_norm": invariant.rms_norm.impl_fn,
    "invariant_fused_add_rms_norm": invariant.fused_add_rms_norm.impl_fn,
    "invariant_functional_fused_add_rms_norm": invariant.functional_fused_add_rms_norm,
    "invariant_silu_and_mul": invariant.silu_and_mul.impl_fn,
    "invariant_gelu_and_mul": invariant.gelu_and_mul.impl_fn,
    "invariant_rotary_embedding": invariant.rotary_embedding.impl_fn,
    "invariant_functional_rotary_embedding": invariant.functional_rotary_embedding,
}
OPS = [
    *(op for op in CASES if "functional" not in op and "invariant" not in op),
    "fused_add_rms_norm_",
    "rotary_embedding_",
]


@pytest.fixture(autouse=True, scope="module")
def _on_cpu() -> None:
    """Register the ops' functions for the CPU, too, for the rest of this process."""
    for op in OPS:
        defined = getattr(torch_ops, op)
        defined.register_kernel("cpu")(defined._init_fn)


def carried_out(launch: Launch, device: torch.device) -> None:
    """Do what a launch would, by the ops' own functions, from its tensors and numbers."""
    assert device.type == "cpu"
    outs, native = launch.tensors, ops
    if launch.variant.program == "gate":
        gates, ups = outs[1].chunk(2, dim=-1)
        outs[0].copy_(ACTIVATIONS[launch.variant.constants[0]](gates) * ups)
    elif launch.variant.program == "norm":
        out, residual_out, x, residual, weight = (each.clone() for each in launch.tensors)
        fused, weighted, *_ = launch.variant.constants
        given = (weight if weighted else None, launch.numbers[-1], launch.numbers[3])
        if fused:
            out, residual_out = native.fused_add_rms_norm.impls["native"].impl_fn(x, residual, *given)
            outs[1].copy_(residual_out)
        else:
            out = native.rms_norm.impls["native"].impl_fn(x, *given)
        outs[0].copy_(out)
    else:
        query, key, cache, positions = (each.clone() for each in outs[2:])
        sizes = (launch.numbers[5], 2 * launch.numbers[6])
        turned = native.rotary_embedding.impls["native"].impl_fn(
            positions, query, key, *sizes, cache, launch.variant.constants[0]
        )
        for out, result in zip(outs[:2], turned, strict=True):
            out.copy_(result)


@pytest.fixture(autouse=True)
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Carry launches out on this CPU, and remember them."""
    seen: list[Launch] = []

    def run(launch: Launch, device: torch.device) -> None:
        """Remember a launch and carry it out."""
        seen.append(launch)
        carried_out(launch, device)

    monkeypatch.setattr(loading, "run", run)
    monkeypatch.setattr(loading, "architecture", lambda device: f"sm_9{device.index or 0}")
    return seen


def arguments(op: str, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    """Return the arguments of a call."""
    x, residual, weight = (torch.randn(3, 64).to(dtype), torch.randn(3, 64).to(dtype), torch.randn(64).to(dtype))
    return {
        "rms_norm": (x, weight, 1e-6),
        "fused_add_rms_norm": (x, residual, weight, 1e-6),
        "silu_and_mul": (x,),
        "gelu_and_mul": (x, "tanh"),
        "rotary_embedding": (torch.tensor([0, 2, 7]), x, residual, 16, 16, torch.randn(8, 16).to(dtype), True),
    }[op.removeprefix("invariant_").removeprefix("functional_")]


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def same(got: Any, expected: Any) -> None:
    """Require equal results."""
    for one, other in zip(tensors(got), tensors(expected), strict=True):
        assert torch.equal(one, other)


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_finds_no_fault_with_the_ops(op: str, dtype: torch.dtype) -> None:
    """Schema, fake, and use under AOTAutograd with changing sizes."""
    opcheck(getattr(torch_ops, op), clones(arguments(op.removesuffix("_"), dtype)))


@pytest.mark.parametrize("op", CASES)
def test_the_fake_has_the_strides_of_the_real_result(op: str) -> None:
    """Also for rows that do not lie side by side, which are left alone when they are donated."""
    args = tuple(
        torch.randn(3, 2, 64)[:, 1] if isinstance(arg, torch.Tensor) and arg.shape == (3, 64) else arg
        for arg in arguments(op)
    )
    before = clones(args)
    real = tensors(CASES[op](*args))
    with FakeTensorMode() as mode:
        fakes = tuple(mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        fake = tensors(CASES[op](*fakes))
    for one, other in zip(real, fake, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    assert all(
        torch.equal(one, other) for one, other in zip(args, before, strict=True) if isinstance(one, torch.Tensor)
    )


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_trace_has_one_node(op: str, mode: Literal["real", "fake", "symbolic"]) -> None:
    """make_fx sees the torch op in the place of the kernel, and the graph computes the same."""
    args = arguments(op)
    where = [i for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)]

    def call(*given: torch.Tensor) -> Any:
        """Run the implementation on the tensors given."""
        all_args = list(args)
        for i, tensor in zip(where, given, strict=True):
            all_args[i] = tensor
        return CASES[op](*all_args)

    given = tuple(args[i] for i in where)
    graph = make_fx(call, tracing_mode=mode)(*clones(given))
    nodes = [each for each in graph.graph.nodes if each.op == "call_function" and "vllm" in str(each.target)]
    assert len(nodes) == 1
    same(graph(*clones(given)), call(*clones(given)))


@pytest.mark.parametrize("op", CASES)
def test_dynamo_takes_a_kernel_in_one_graph(op: str) -> None:
    """Fullgraph, with open sizes: nothing of the launch is looked into."""
    torch.compiler.reset()
    args = arguments(op)
    got = torch.compile(CASES[op], fullgraph=True, dynamic=True, backend="aot_eager")(*clones(args))
    same(got, CASES[op](*clones(args)))


class Recorder(TorchDispatchMode):
    """Remembers which torch ops ran."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.ops: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Remember the op and run it."""
        del types
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("op", CASES)
def test_a_mode_sees_the_op_and_an_eager_call_passes_it_by(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who watches sees one op; who does not pays for none."""
    with Recorder() as recorder:
        CASES[op](*clones(arguments(op)))
    assert sum("vllm_ir_triton" in each for each in recorder.ops) == 1
    monkeypatch.setattr(kernels, "torch_ops", None)
    monkeypatch.setattr(invariant, "torch_ops", None)
    CASES[op](*clones(arguments(op)))


def test_an_op_settles_what_its_kernel_could_not_write_in_place() -> None:
    """The ops that write promise it to whoever traces, for any strides and for one tensor donated twice."""
    x, residual = torch.randn(3, 2, 64)[:, 0], torch.randn(3, 64)
    expected = kernels.functional_fused_add_rms_norm(x, residual, None, 1e-6)
    torch_ops.fused_add_rms_norm_(x, residual, None, 1e-6)
    same((x, residual), expected)


def overlapping() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return calls whose donated tensors share memory, with each other or with what is read beside them."""
    x, other, weight = torch.randn(70, 64), torch.randn(70, 64), torch.randn(64)
    positions, cache = torch.arange(70) % 8, torch.randn(8, 16)
    return {
        "x is the residual": ("fused_add_rms_norm", (x, x, weight, 1e-6)),
        "the residual begins in x": ("fused_add_rms_norm", (x.flatten()[:2048].view(32, 64), x[31:63], weight, 1e-6)),
        "x begins in the residual": ("fused_add_rms_norm", (x[31:63], x[:32], weight, 1e-6)),
        "the weight is a row of x": ("fused_add_rms_norm", (x, other, x[0], 1e-6)),
        "the weight is a row of the residual": ("fused_add_rms_norm", (x, other, other[69], 1e-6)),
        "key is query": ("rotary_embedding", (positions, x, x, 16, 16, cache, True)),
        "angles are in query": ("rotary_embedding", (positions, x, other, 16, 16, x[9:17, 48:], True)),
        "angles are in key": ("rotary_embedding", (positions, x, other, 16, 16, other[60:68, :16], True)),
        "positions are in key": (
            "rotary_embedding",
            (other.view(torch.int32).fill_(1)[:, 3], x, other, 16, 16, cache, True),
        ),
    }


@pytest.mark.parametrize("name", overlapping())
def test_what_shares_memory_is_left_alone(name: str) -> None:
    """Programs run in any order, so one would read what another has written; the results are new tensors."""
    op, args = overlapping()[name]
    before = clones(args)
    wanted = getattr(ops, op).impls["native"].impl_fn(*args)
    got = CASES[op](*args)
    donated = [args[i] for i in getattr(ops, op).activation_indices]
    assert not any(one is given for one in got for given in donated)
    assert all(
        torch.equal(one, other) for one, other in zip(args, before, strict=True) if isinstance(one, torch.Tensor)
    )
    same(got, wanted)


def test_neighbours_in_memory_are_written_in_place() -> None:
    """One tensor ends where the other begins, and the weight or the angles lie around them: nothing is shared."""
    whole = torch.randn(210, 64)
    x, residual, weight = whole[:70], whole[70:140], whole[140]
    assert CASES["fused_add_rms_norm"](x, residual, weight, 1e-6)[0] is x
    positions = torch.arange(70) % 8
    assert CASES["rotary_embedding"](positions, residual, x, 16, 16, whole[140:148, :16], NEOX)[0] is residual


ONE_POSITION = {
    "heads in a dimension of their own": ((8, 16), (2, 16)),
    "five rows of them": ((5, 8, 16), (5, 2, 16)),
    "packed and not": ((5, 64), (3, 2, 16)),
    "one head, and many tokens": ((16,), (4, 64)),
    "no key": ((4, 16), (0, 16)),
    "one token of many heads": ((1, 8, 16), (1, 2, 16)),
}


@pytest.mark.parametrize("name", ONE_POSITION)
@pytest.mark.parametrize("op", ["rotary_embedding", "functional_rotary_embedding"])
def test_one_position_is_for_all_rows(op: str, name: str, launches: list[Launch]) -> None:
    """Query and key may then have rows as they like; each launch has as many programs as its tensors have blocks."""
    query, key = (torch.randn(sizes) for sizes in ONE_POSITION[name])
    args = (torch.tensor([5]), query, key, 16, 16, torch.randn(8, 16), True)
    wanted = ops.rotary_embedding.impls["native"].impl_fn(*args)
    given = clones(args)
    got = CASES[op](*given)
    same(got, wanted)
    assert [one is other for one, other in zip(got, given[1:3], strict=True)] == [op == "rotary_embedding"] * 2
    if name == "one token of many heads":
        assert [each.numbers[9:11] for each in launches] == [(8, 2)]
    else:
        assert [each.numbers[10] for each in launches] == [0, 0]
        for launch, x in zip(launches, (query, key), strict=True):
            heads = launch.numbers[9]
            rows = x.numel() // (16 * int(heads))
            assert launch.blocks == rows * -(-heads // launch.variant.constants[4])


@pytest.mark.parametrize("op", [op for op in CASES if op.startswith("invariant")])
def test_the_batch_invariant_provider_is_planned_without_the_batch(op: str, launches: list[Launch]) -> None:
    """Eager and traced, one row and a thousand are launched alike, and rows are summed in one order."""
    args = arguments(op.replace("functional_", ""), torch.bfloat16)
    cache = args[5] if "rotary" in op else None
    many = tuple(
        each.repeat(400, *[1] * (each.dim() - 1))
        if isinstance(each, torch.Tensor) and each is not cache and each.shape[0] == TOKENS
        else each
        for each in args
    )
    for given in (args, many):
        CASES[op](*clones(given))
        with Recorder():
            CASES[op](*clones(given))
    assert len({each.variant for each in launches}) == 1
    assert len(launches) == 4
    if "norm" in op:
        assert launches[0].variant.constants[4] == 6  # 64 elements are halved so often
