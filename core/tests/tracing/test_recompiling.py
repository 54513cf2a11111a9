"""What Dynamo compiled stays valid whatever happens to an op, and runs the provider that holds at the call."""

from __future__ import annotations

import contextvars
import threading
from typing import TYPE_CHECKING, Any

import torch
import vllm_ir
from torch._dynamo.testing import CompileCounter
from vllm_ir import ops
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from torch import Tensor

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def test_one_graph_serves_every_priority(program: Any, inputs: Inputs, add_provider: Any) -> None:
    """Warming, registering, set_default and scopes compile nothing anew, and each change is seen by the next call."""
    op = program.op
    counter = CompileCounter()
    compiled: Any = torch.compile(program.function(), backend=counter, fullgraph=True)

    def check(factor: float) -> None:
        """Fail unless the provider with that factor ran, in the first graph."""
        torch.testing.assert_close(compiled(*inputs), program.expected(*inputs, factor))
        assert counter.frame_count == 1

    check(1.0)
    program.function()(*inputs)
    check(1.0)
    add_provider(op, "a", 2.0)
    check(1.0)
    op.set_default("a")
    check(2.0)
    add_provider(op, "b", 3.0)
    with op.set_priority("b"):
        check(3.0)
        with op.set_priority("native"):
            check(1.0)
        check(3.0)
    check(2.0)
    op.set_default(["b", "a"])
    check(3.0)
    vllm_ir.load_providers()
    check(3.0)


def test_a_graph_compiled_inside_a_scope_serves_outside(program: Any, inputs: Inputs, add_provider: Any) -> None:
    """What was compiled while a scope was open does not keep the scope's provider."""
    add_provider(program.op, "a", 2.0)
    counter = CompileCounter()
    compiled: Any = torch.compile(program.function(), backend=counter, fullgraph=True)
    with program.op.set_priority("a"):
        torch.testing.assert_close(compiled(*inputs), program.expected(*inputs, 2.0))
    torch.testing.assert_close(compiled(*inputs), program.expected(*inputs, 1.0))
    assert counter.frame_count == 1


def test_discovery_warms_an_op_that_was_compiled_cold(inputs: Inputs) -> None:
    """The first call of a cold op inside a compiled function discovers providers once, at run time."""
    loaded: list[int] = []

    def run(x: Tensor, w: Tensor) -> Tensor:
        """Call an op."""
        return ops.rms_norm(x, w, 1e-5) + 1  # type: ignore[no-any-return]

    with isolated(loader=lambda: loaded.append(1)):
        counter = CompileCounter()
        compiled: Any = torch.compile(run, backend=counter, fullgraph=True)
        first = compiled(inputs[0], inputs[2])
        assert loaded
        torch.testing.assert_close(compiled(inputs[0], inputs[2]), first)
        assert counter.frame_count == 1


def test_a_thread_sees_its_own_scope_in_one_graph(program: Any, inputs: Inputs, add_provider: Any) -> None:
    """Two threads with different scopes share a compiled function, and each gets its own provider."""
    add_provider(program.op, "a", 2.0)
    counter = CompileCounter()
    compiled: Any = torch.compile(program.function(), backend=counter, fullgraph=True)
    compiled(*inputs)
    inside, checked = threading.Event(), threading.Event()
    seen: dict[str, Tensor] = {}

    def scoped() -> None:
        """Call inside a scope while the main thread calls outside."""
        with program.op.set_priority("a"):
            inside.set()
            checked.wait(10)
            seen["scoped"] = compiled(*inputs)

    thread = threading.Thread(target=contextvars.Context().run, args=(scoped,))
    thread.start()
    assert inside.wait(10)
    seen["main"] = compiled(*inputs)
    checked.set()
    thread.join(10)
    torch.testing.assert_close(seen["main"], program.expected(*inputs, 1.0))
    torch.testing.assert_close(seen["scoped"], program.expected(*inputs, 2.0))
    assert counter.frame_count == 1


def test_many_ops_do_not_share_a_limit(inputs: Inputs) -> None:
    """A function that calls the same op with many numbers does not run into Dynamo's limit on recompilations."""
    counter = CompileCounter()

    def run(x: Tensor, w: Tensor) -> Tensor:
        """Call an op forty times."""
        for i in range(40):
            x = ops.rms_norm(x, w, 1e-5 * (i + 1))
        return x

    compiled: Any = torch.compile(run, backend=counter, fullgraph=True)
    with isolated():
        torch.testing.assert_close(compiled(inputs[0], inputs[2]), run(inputs[0], inputs[2]))
    assert (counter.frame_count, counter.op_count) == (1, 40)
