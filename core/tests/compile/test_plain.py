"""Plain torch.compile: what native runs is inlined, all else stays one op that dispatches when it runs."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import ops, register_op
from vllm_ir.compile.plain import decompositions_without_ops
from vllm_ir.errors import NoImplementation, RefusedArguments
from vllm_ir.isolation import isolated
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm


@pytest.fixture(autouse=True)
def uncached(state: Runtime) -> Iterator[None]:
    """Compile everything anew, in a process state of the test's own."""
    assert state is not None
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


def inputs(tokens: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, a residual and a weight."""
    return torch.randn(tokens, 16), torch.randn(tokens, 16), torch.rand(16) + 0.5


def layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Run an op, and one that is donated two intermediate tensors."""
    out, total = fused.maybe_inplace(rms(x, w, 1e-5) * 2, r * 1, w, 1e-5)
    return out + 1, total


def native_layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same with the native functions."""
    out, total = fused.declaration.native(rms.declaration.native(x, w, 1e-5) * 2, r * 1, w, 1e-5)
    return out + 1, total


def calls_in(code: str) -> list[str]:
    """Return the names of the ops that generated code calls."""
    return re.findall(r"torch\.ops\.vllm_ir\.(\w+\.\w+)\(", code)


class Recorder:
    """Inductor as far as AOTAutograd, for tests that need no code: it keeps each graph and runs it as it is.

    Attributes:
        graphs: those that Inductor would make code of.
    """

    def __init__(self, table: Callable[[], dict[Any, Any]] | None = None) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self._table = table

    def __call__(self, module: torch.fx.GraphModule, example: Any) -> Any:
        """Compile one graph of Dynamo's."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._inductor.compile_fx import compile_fx

        def inner(graph: torch.fx.GraphModule, *_args: Any, **_options: Any) -> Any:
            """Keep what Inductor would compile."""
            self.graphs.append(graph)
            return make_boxed_func(graph.forward)

        table = None if self._table is None else self._table()
        return compile_fx(module, example, inner_compile=inner, decompositions=table)

    @property
    def calls(self) -> list[list[Any]]:
        """The ops of ours that each graph calls."""
        return [
            [node.target for node in graph.graph.nodes if str(node.target).startswith("vllm_ir")]
            for graph in self.graphs
        ]


def recorded(run: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[Any]]:
    """Return the result of a compiled function, and the ops that are left in its graph."""
    recorder = Recorder()
    with torch.no_grad():
        result = torch.compile(run, fullgraph=True, backend=recorder, **options)(*args)
    (calls,) = recorder.calls
    return result, calls


@pytest.mark.parametrize("dynamic", [False, True])
def test_native_is_inlined_and_fused(dynamic: bool) -> None:
    """No op is left in the code, donating ones included, and it is as many kernels as the native functions make."""
    args = inputs()
    kernels = []
    for run in (layer, native_layer):
        with torch.no_grad():
            got, (code,) = run_and_get_code(torch.compile(run, fullgraph=True, dynamic=dynamic), *args)
        assert calls_in(code) == []
        torch.testing.assert_close(got, layer(*args))
        kernels.append(code.count("async_compile.cpp"))
    assert kernels[0] == kernels[1] > 0


def test_providers_stay_whole_and_dispatch_when_they_run(add_provider: Any) -> None:
    """An op that a provider takes is one call that asks the priority of its context; the others are inlined."""
    add_provider(rms, "a", 2.0)
    rms.set_default("a")
    args = inputs()
    run: Any = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        _, (code,) = run_and_get_code(run, *args)
        assert calls_in(code) == ["rms_norm.default"]
        torch.testing.assert_close(run(*args), layer(*args))
        with rms.set_priority("native"):
            torch.testing.assert_close(run(*args), native_layer(*args))


def test_the_scope_that_is_open_while_compiling_decides(add_provider: Any) -> None:
    """What a scope of the compiling context asks for is whole, although native is the default."""
    add_provider(rms, "a", 2.0)
    with rms.set_priority("a"):
        _, calls = recorded(layer, *inputs())
    assert calls == [rms.torch_op]


def test_an_op_registered_after_the_first_compilation_is_inlined() -> None:
    """Nothing is set up once for the ops there are."""
    recorded(layer, *inputs())

    @register_op
    def late_double(x: Tensor) -> Tensor:
        """Double x."""
        return x * 2

    x = torch.randn(4, 8)
    got, calls = recorded(lambda x: late_double(x) + 1, x)
    assert calls == []
    torch.testing.assert_close(got, x * 2 + 1)


def test_a_native_that_writes_to_its_own_tensors_is_inlined() -> None:
    """Writes inside of native, also through views, become functional like any others."""

    @register_op
    def scribbling(x: Tensor, weight: Tensor) -> Tensor:
        """Double, set a row, add the weight, and negate through a view."""
        doubled = x.float().clone().mul_(2)
        out = torch.empty_like(doubled)
        out.copy_(doubled)
        out[0] = 3.0
        out.add_(weight)
        out.view(-1).neg_()
        return out.to(x.dtype)

    x, weight = torch.randn(4, 8), torch.randn(8)
    kept = x.clone()
    got, calls = recorded(lambda x, w: scribbling(x, w) + 1, x, weight)
    assert calls == []
    torch.testing.assert_close(got, scribbling(x, weight) + 1)
    assert torch.equal(x, kept)


def gradients(run: Callable[..., Any]) -> list[Tensor | None]:
    """Return the gradients of rows, residual and weight."""
    torch.manual_seed(1)
    args = [value.requires_grad_() for value in inputs()]
    out, total = run(*args)
    (out.sin().sum() + total.cos().sum()).backward()
    return [value.grad for value in args]


def test_training_is_that_of_compiled_native() -> None:
    """Forward and backward hold no op, and the gradients are compiled native's to the bit."""
    wanted = gradients(torch.compile(native_layer, fullgraph=True))
    got, codes = run_and_get_code(lambda: gradients(torch.compile(layer, fullgraph=True)))
    assert len(codes) == 2
    assert calls_in("\n".join(codes)) == []
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)


def test_training_with_a_provider(add_provider: Any) -> None:
    """The provider runs forward as one call, and backward is native's, without any op."""
    add_provider(rms, "a", 1.0)
    rms.set_default("a")
    recorder = Recorder()
    got = gradients(torch.compile(layer, fullgraph=True, backend=recorder))
    assert recorder.calls == [[rms.torch_op], []]
    torch.testing.assert_close(got, gradients(native_layer))


def trailing(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Refuse rows of 16 for a reason that no batch changes."""
    del weight, epsilon, variance_size
    return Unsupported("rows of 16") if x.shape[-1] == 16 else True


def leading(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Take more than six tokens, which a predicate must not ask for."""
    del weight, epsilon, variance_size
    return x.shape[0] > 6


def test_native_behind_a_refusal_is_inlined(add_provider: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal that fake tensors can tell lets native take the call, and is told as an eager call tells it."""
    add_provider(rms, "a", 2.0, supports_args=trailing)
    rms.set_default("a")
    args = inputs()
    for value in args[:2]:
        torch._dynamo.mark_dynamic(value, 0)
    with caplog.at_level(logging.WARNING, logger="vllm_ir"):
        got, calls = recorded(layer, *args)
    assert calls == []
    assert "provider a, named by set_default, refuses: rows of 16" in caplog.text
    torch.testing.assert_close(got, native_layer(*args))


def test_a_refusal_that_depends_on_an_open_size_is_left_to_the_call(add_provider: Any) -> None:
    """Where trailing sizes are open, too, the graph serves rows that a provider takes and rows that it refuses."""
    add_provider(rms, "a", 2.0, supports_args=trailing)
    rms.set_default("a")
    recorder = Recorder()
    run: Any = torch.compile(layer, fullgraph=True, dynamic=True, backend=recorder)
    with torch.no_grad():
        for width in (16, 24):
            args = torch.randn(5, width), torch.randn(5, width), torch.rand(width)
            torch.testing.assert_close(run(*args), layer(*args))
    assert recorder.calls == [[rms.torch_op]]


def test_a_predicate_that_asks_for_the_batch_is_asked_when_the_call_runs(add_provider: Any) -> None:
    """One graph serves every batch, each gets what eager gives it, and no guard on the batch is added."""
    add_provider(rms, "a", 2.0, supports_args=leading)
    rms.set_default("a")
    recorder = Recorder()
    run: Any = torch.compile(layer, fullgraph=True, dynamic=True, backend=recorder)
    with torch.no_grad():
        for tokens in (5, 9, 6, 7):
            args = inputs(tokens)
            torch.testing.assert_close(run(*args), layer(*args))
    assert recorder.calls == [[rms.torch_op]]


def test_strict_mode_raises_as_an_eager_call_does(add_provider: Any) -> None:
    """A refusal of what a user named reaches the caller by its own class, when the call runs."""
    with isolated({"VLLM_IR_STRICT": "1"}):
        add_provider(rms, "a", 2.0, supports_args=trailing)
        rms.set_default("a")
        with torch.no_grad(), pytest.raises(RefusedArguments, match="rows of 16"):
            torch.compile(layer, fullgraph=True, backend=Recorder())(*inputs())


def test_batch_invariance_keeps_every_op_whole() -> None:
    """Compiled native gives no guarantee, so where one is asked for nothing is inlined."""

    @register_op(batch_invariant=True)
    def guaranteed(x: Tensor) -> Tensor:
        """Double x."""
        return x * 2

    for variables, kept in (({}, []), ({"VLLM_BATCH_INVARIANT": "1"}, ["vllm_ir::guaranteed"])):
        torch._dynamo.reset()
        x = torch.randn(4, 8)
        with isolated(variables):
            got, calls = recorded(lambda x: guaranteed(x) + 1, x)
        assert [call.name() for call in calls] == kept
        torch.testing.assert_close(got, x * 2 + 1)


def test_nothing_that_may_run_raises_as_an_eager_call_does() -> None:
    """Where no candidate is admitted the graph compiles, and its call says why, like an eager one."""

    @register_op
    def unguaranteed(x: Tensor) -> Tensor:
        """Double x."""
        return x * 2

    with isolated({"VLLM_BATCH_INVARIANT": "1"}), torch.no_grad(), pytest.raises(NoImplementation):
        torch.compile(unguaranteed, fullgraph=True, backend=Recorder())(torch.randn(4, 8))


def test_other_backends_see_whole_ops() -> None:
    """What another backend gets from AOTAutograd holds each op as one functional node."""
    backend = AotEagerAndRecordGraphs()
    with torch.no_grad():
        torch.compile(layer, fullgraph=True, backend=backend)(*inputs())
    (graph,) = backend.fw_graphs
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert [t for t in targets if t in (rms.torch_op, fused.torch_op)] == [rms.torch_op, fused.torch_op]
    assert not any("mean" in str(target) for target in targets)


def test_a_table_without_our_ops_keeps_them_whole() -> None:
    """A backend that compiles with it meets every op behind AOTAutograd; one that does not, none."""
    for table, kept in ((decompositions_without_ops, [rms.torch_op, fused.torch_op]), (None, [])):
        torch._dynamo.reset()
        recorder = Recorder(table)
        with torch.no_grad():
            torch.compile(layer, fullgraph=True, backend=recorder)(*inputs())
        assert recorder.calls == [kept]


def test_a_graph_that_reaches_inductor_without_dynamo_keeps_ops_whole() -> None:
    """Its key was worked out before anybody could tell what would be inlined; whole ops are right all the same."""
    args = inputs()
    recorder = Recorder()
    with torch.no_grad():
        got = recorder(make_fx(layer)(*args), args)(*args)
    assert recorder.calls == [[rms.torch_op, fused.torch_op]]
    torch.testing.assert_close(tuple(got), layer(*args))


def test_an_exported_program_is_inlined_when_it_is_compiled() -> None:
    """torch.export keeps the op, and torch.compile of what it returns does not."""

    class Program(torch.nn.Module):
        """One op."""

        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            """Run it."""
            return rms(x, w, 1e-5) + 1  # type: ignore[no-any-return]

    x, _, w = inputs()
    exported = torch.export.export(Program(), (x, w))
    assert rms.torch_op in [node.target for node in exported.graph.nodes]
    got, calls = recorded(exported.module(), x, w)
    assert calls == []
    torch.testing.assert_close(got, Program()(x, w))


def test_every_selection_is_logged(add_provider: Any, caplog: pytest.LogCaptureFixture) -> None:
    """At level DEBUG a reader sees what became of each call, and why."""
    add_provider(rms, "a", 2.0)
    rms.set_default("a")
    with caplog.at_level(logging.DEBUG, logger="vllm_ir"):
        recorded(layer, *inputs())
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("plain graph")]
    assert said == [
        "plain graph: op rms_norm: stays whole: a takes it",
        "plain graph: op fused_add_rms_norm: native, inlined",
    ]


EAGER = """
import sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import ops
run = lambda x: ops.rms_norm(x, None, 1e-5)
run(torch.ones(2, 8))
make_fx(run)(torch.ones(2, 8))
with FakeTensorMode():
    run(torch.empty(2, 8))
print([name for name in sys.modules if name.startswith("vllm_ir.compile")])
"""


def test_a_process_that_never_compiles_loads_none_of_this() -> None:
    """Eager calls, fake tensors, and graphs that nobody compiles leave the package alone."""
    done = subprocess.run([sys.executable, "-c", EAGER], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr
