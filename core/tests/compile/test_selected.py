"""Who runs which node of a compiled graph, as `report()` and the log tell it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from vllm_ir import Unsupported, ops, report
from vllm_ir.compile.backend import backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

    from core.tests.compile.conftest import Lowerer

X, W = torch.linspace(-1, 1, 64).view(4, 16), torch.rand(16)


def twice(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Normalise two times."""
    found: torch.Tensor = ops.rms_norm(ops.rms_norm(x, weight, 1e-5) + 1, weight, 1e-5)
    return found


def test_selections_are_told_by_op_and_node(compiled: Lowerer, provide: Callable[..., None]) -> None:
    """As the specification writes them, also of the pass itself."""
    provide(ops.rms_norm, "functional")
    compiled(twice)(X, W)
    record = report().graphs[-1]
    assert (
        record.selected == {"rms_norm": {"rms_norm": "probe", "rms_norm_1": "probe"}} == compiled.lowered[-1].selected
    )
    assert not record.cached
    assert [each.name for each in record.passes] == ["functionalization", "lowering"]
    assert sum(each.seconds for each in record.passes) == record.seconds > 0
    assert len(record.digest) == 64


def test_graphs_are_counted_and_not_their_calls(compiled: Lowerer, provide: Callable[..., None]) -> None:
    """Two calls in a graph, which is called twice, are one graph for the provider that runs them."""
    provide(ops.rms_norm, "functional")
    run = compiled(twice)
    run(X, W)
    run(X, W)
    compiled(twice, provider=None)(X, W)
    found = report().ops["rms_norm"]
    assert found.graphs == {"probe": 1, "native": 1}
    assert found.calls == {}
    assert "graphs probe in 1, native in 1" in str(report())
    assert [line for line in str(report()).splitlines() if line.startswith("graph ")] == [
        str(graph) for graph in report().graphs
    ]


def test_refusals_are_told_with_reason_and_number(compiled: Lowerer, state: Runtime) -> None:
    """Each call that a provider refused counts."""
    assert state is not None

    def only_half(x: Any, weight: Any, epsilon: float, variance_size: int | None = None) -> bool | Unsupported:
        """Refuse float32."""
        assert weight is not None
        assert epsilon
        assert variance_size is None
        return x.dtype is torch.float16 or Unsupported("needs float16")

    ops.rms_norm.register_impl("probe", supports_args=only_half)(ops.rms_norm.declaration.native)
    compiled(twice)(X, W)
    record = report().graphs[-1]
    assert record.refusals == (("rms_norm", "probe", "needs float16", 2),)
    assert set(record.selected["rms_norm"].values()) == {"native"}
    assert "probe refused rms_norm 2x: needs float16" in str(report())


def many(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Normalise forty times."""
    for _ in range(40):
        x = ops.rms_norm(x + 1, weight, 1e-5)
    return x


def test_the_log_begins_with_a_summary_and_has_no_line_per_node(
    compiled: Lowerer, provide: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Forty nodes are one line, in which every one of them is named."""
    provide(ops.rms_norm, "functional")
    with caplog.at_level(logging.DEBUG, logger="vllm_ir"):
        compiled(many)(X, W)
    messages = [record.getMessage() for record in caplog.records if record.name == "vllm_ir"]
    lines = [message for message in messages if message.startswith(("graph ", "  "))]
    assert lines[0] == str(report().graphs[-1])
    assert "rms_norm by probe (40x)" in lines[0]
    assert lines[1] == "  probe runs rms_norm in rms_norm to rms_norm_39"
    assert all(line.startswith("  pass ") for line in lines[2:])
    assert len(messages) < 10


def recomputed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Call an op whose call stands in the backward graph again."""

    def inner(t: torch.Tensor) -> torch.Tensor:
        """Be run again in backward."""
        normal: torch.Tensor = ops.rms_norm(torch.sin(t), weight, 1e-5)
        return normal.sin()

    found: torch.Tensor = checkpoint(inner, x, use_reentrant=False)
    return found


@pytest.mark.parametrize("inductor", [False, True])
def test_a_backward_graph_that_is_compiled_later_goes_by_the_same_plan(
    compiled: Lowerer, provide: Callable[..., None], state: Runtime, inductor: bool
) -> None:
    """Whatever was set in between, and in whatever thread it happens; it is a record of its own."""
    provide(ops.rms_norm, "functional")
    x = X.clone().requires_grad_()
    out = compiled(recomputed, inductor=inductor)(x, W).sum()
    known = [each.name for each in report().graphs]
    with ops.rms_norm.set_priority(["native"]):
        ops.rms_norm.set_default(["native"])
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
    forward, backward = report().graphs
    assert backward.name == f"{forward.name} backward"
    assert forward.name in known
    assert [set(each.selected["rms_norm"].values()) for each in (forward, backward)] == [{"probe"}] * 2
    # The caches that the test turns off are on again in that thread.
    assert backward.cached or [each.name for each in backward.passes] == ["lowering"]
    assert forward.digest == backward.digest
    assert state.graphs.counts("rms_norm") == {"probe": 2}
    by_native = x.detach().requires_grad_()
    ops.rms_norm.declaration.native(torch.sin(by_native), W, 1e-5).sin().sum().backward()
    torch.testing.assert_close(x.grad, by_native.grad)


def test_graphs_can_be_told_apart(state: Runtime) -> None:
    """By a number, also where Dynamo calls two of them alike, and by the place in the program that they are of."""
    assert state is not None
    for function in (twice, many):
        torch._dynamo.reset()
        torch.compile(function, backend=backend, options={"lower_to": lambda module, _: module})(X, W)
    first, second = report().graphs
    assert first.name == second.name
    assert (first.number, second.number) == (1, 2)
    assert first.place.endswith(", in twice")
    assert second.place.endswith(", in many")
    assert "test_selected.py:" in first.place
    assert f"(no. 2, {second.place}): rms_norm whole (40x), 0 copies" in str(report())


def test_a_graph_without_ops_is_told_as_one(state: Runtime) -> None:
    """The backend compiles anything; there is nothing to select."""
    assert state is not None
    torch.compile(lambda x: x + 1, backend=backend, options={"lower_to": lambda module, _: module})(X)
    assert report().graphs[-1].selected == {}
    assert "no op in it" in str(report())
