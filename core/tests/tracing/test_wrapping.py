"""With the torch wrap off tracers see what would run instead of the op, and results and gradients are the same."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.testing import EagerAndRecordGraphs
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import enable_torch_wrap, ops, set_default_torch_wrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor
    from vllm_ir.runtime import Runtime

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(params=["scope", "process"])
def off(request: pytest.FixtureRequest, state: Runtime) -> Iterator[None]:
    """Turn the wrap off in a scope or for the process."""
    assert state is not None
    if request.param == "process":
        set_default_torch_wrap(enable=False)
        yield
        set_default_torch_wrap(enable=True)
        return
    with enable_torch_wrap(enable=False):
        yield


def opaque(graph: torch.fx.Graph) -> bool:
    """Tell whether an op is in a graph."""
    return "vllm_ir" in " ".join(str(node.target) for node in graph.nodes)


@pytest.mark.usefixtures("off")
def test_eager(situation: Any, inputs: Inputs) -> None:
    """Eager calls are the same."""
    result = situation.program.function()(*inputs)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


@pytest.mark.usefixtures("off")
@pytest.mark.parametrize("form", ["function", "keywords"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_dynamo_traces_native(program: Any, inputs: Inputs, form: str, dynamic: bool) -> None:
    """Dynamo sees native's arithmetic and no op, with any way of giving arguments, before the first call and after."""
    for warm in (False, True):
        torch._dynamo.reset()
        if warm:
            program.function()(*inputs)
        backend = EagerAndRecordGraphs()
        traced: Any = torch.compile(getattr(program, form)(), backend=backend, fullgraph=True, dynamic=dynamic)
        with torch.no_grad():
            torch.testing.assert_close(traced(*inputs), program.expected(*inputs))
        assert not opaque(backend.graphs[0].graph)


@pytest.mark.usefixtures("off")
def test_dynamo_traces_the_provider(program: Any, inputs: Inputs, add_provider: Any) -> None:
    """Dynamo sees the candidate that takes the call, asked with the tensors it traces."""
    add_doubling(program.op)
    add_provider(program.op, "late", 5.0)
    program.op.set_default("doubling")
    backend = EagerAndRecordGraphs()
    compiled: Any = torch.compile(program.function(), backend=backend, fullgraph=True)
    with torch.no_grad():
        result = compiled(*inputs)
    assert not opaque(backend.graphs[0].graph)
    torch.testing.assert_close(result, program.expected(*inputs, 2.0))


def add_doubling(op: Any) -> None:
    """Register a provider of torch operations that Dynamo can trace, with a predicate."""
    if op is ops.rms_norm:
        op.register_impl("doubling", supports_args=takes_float32)(double_rms_norm)
    else:
        op.register_impl("doubling", supports_args=takes_float32_pair)(double_fused)


def takes_float32(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """Want float32."""
    del weight, epsilon, variance_size
    return x.dtype is torch.float32


def double_rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Return native's result twice."""
    return ops.rms_norm.declaration.native(x, weight, epsilon, variance_size) * 2  # type: ignore[no-any-return]


def takes_float32_pair(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    """Want float32."""
    del x_residual, weight, epsilon, variance_size
    return x.dtype is torch.float32


def double_fused(
    x: torch.Tensor,
    x_residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return native's results twice."""
    out, total = ops.fused_add_rms_norm.declaration.native(x, x_residual, weight, epsilon, variance_size)
    return out * 2, total * 2


@pytest.mark.usefixtures("off")
@pytest.mark.parametrize("backend", ["none", "eager", "aot_eager"])
@pytest.mark.parametrize("provider", [False, True])
def test_gradients(program: Any, inputs: Inputs, add_provider: Any, backend: str, provider: bool) -> None:
    """Gradients are native's, eager and compiled, also where a provider without any gradient would run."""
    if provider:
        add_provider(program.op, "a", 1.0)
        program.op.set_default("a")
    run = program.function()
    if backend != "none":
        run = torch.compile(run, backend=backend, fullgraph=True)
    got = [value.clone().requires_grad_() for value in inputs]
    wanted = [value.clone().requires_grad_() for value in inputs]
    run(*got).sin().sum().backward()
    program.expected(*wanted).sin().sum().backward()
    for mine, native in zip(got, wanted, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, native.grad)


@pytest.mark.usefixtures("off")
def test_make_fx_sees_what_runs(program: Any, inputs: Inputs) -> None:
    """make_fx records native's arithmetic."""
    assert not opaque(make_fx(program.function())(*inputs).graph)


def test_the_scope_is_of_one_context(program: Any, inputs: Inputs) -> None:
    """Another thread, while a scope is open here, still shows tracers the op."""
    graphs: dict[str, Any] = {}

    def trace(where: str) -> None:
        """Keep the graph of the program."""
        graphs[where] = make_fx(program.function())(*inputs).graph

    with enable_torch_wrap(enable=False):
        trace("inside")
        thread = threading.Thread(target=contextvars.Context().run, args=(trace, "elsewhere"))
        thread.start()
        thread.join(30)
        with enable_torch_wrap(enable=True):
            trace("inner")
    trace("after")
    assert {where: opaque(graph) for where, graph in graphs.items()} == {
        "inside": False,
        "elsewhere": True,
        "inner": True,
        "after": True,
    }


def test_dynamo_compiles_anew_when_the_wrap_changes(program: Any, inputs: Inputs) -> None:
    """A function compiled with ops in it is compiled without them inside a scope, and never serves the wrong graph."""
    backend = EagerAndRecordGraphs()
    compiled: Any = torch.compile(program.function(), backend=backend, fullgraph=True)

    def run() -> Tensor:
        """Run the compiled function."""
        with torch.no_grad():
            result: Tensor = compiled(*inputs)
        return result

    run()
    with enable_torch_wrap(enable=False):
        run()
    run()
    assert [opaque(graph.graph) for graph in backend.graphs][:2] == [True, False]
    torch.testing.assert_close(run(), program.expected(*inputs))


@pytest.mark.usefixtures("off")
def test_fake_and_meta_tensors_never_reach_a_kernel(program: Any, inputs: Inputs, add_provider: Any) -> None:
    """With the wrap off a kernel still sees no meta tensor."""
    calls = add_provider(program.op, "a", 2.0)
    program.op.set_default("a")
    result = program.function()(*[value.to("meta") for value in inputs])
    assert result.device.type == "meta"
    assert not calls
