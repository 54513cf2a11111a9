"""The state of a process: what is asked of it at once by many, and what stays when something in it fails."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import torch
import vllm_ir
from vllm_ir import errors, ops, runtime
from vllm_ir.isolation import isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.runtime import Runtime

X = torch.ones(2, 8)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return sevens in the shape of silu_and_mul's result."""
    return torch.full_like(x[..., : x.shape[-1] // 2], 7.0)


def open_wrap() -> None:
    """Open a scope without torch ops."""
    with vllm_ir.enable_torch_wrap(enable=False):
        pytest.fail("the scope opened")


@pytest.mark.parametrize("change", [open_wrap, lambda: vllm_ir.set_default_torch_wrap(enable=False)])
def test_a_wrong_order_leaves_the_wrapping_as_it_was(change: Callable[[], None]) -> None:
    """Leading tracers into kernels needs the orders, so a wrong one raises there, and nothing is half changed."""
    with isolated({"VLLM_IR_OP_PRIORITY": "rms_norm=nope"}) as state:
        before = {op.name: type(op).__call__ for op in state.registry}
        with pytest.raises(errors.UnknownProvider):
            change()
        assert state.wrapping.always
        assert {op.name: type(op).__call__ for op in state.registry} == before
        assert ops.silu_and_mul(X).shape == (2, 4)


def flags(*, enable: bool) -> Iterator[bool]:
    """Yield the setting, from inside a scope."""
    with vllm_ir.enable_torch_wrap(enable=enable):
        while True:
            yield runtime.current().wrapping.enabled()


def test_wrapping_scopes_that_end_in_another_order(state: runtime.Runtime) -> None:
    """The first to open is the first to close, and the setting of the process comes back."""
    first, second = flags(enable=False), flags(enable=True)
    assert (next(first), next(second)) == (False, True)
    first.close()  # type: ignore[attr-defined]
    assert next(second) is True
    second.close()  # type: ignore[attr-defined]
    assert state.wrapping.enabled()
    assert state.wrapping.always


def test_discovery_is_not_waited_for_under_the_lock() -> None:
    """Foreign code that registers from a thread of its own while it is loaded meets no lock that waits for it."""

    def discover() -> bool:
        """Register in another thread, as a library's own start-up may."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ops.silu_and_mul.register_impl("late"), silu).result(20)
        return True

    uses: list[Callable[[], object]] = [
        lambda: ops.silu_and_mul(X),
        lambda: ops.silu_and_mul.set_default("late"),
        lambda: ops.silu_and_mul.set_priority("late").__enter__(),
        lambda: vllm_ir.enable_torch_wrap(enable=False).__enter__(),
        lambda: vllm_ir.IrOpPriorityConfig(silu_and_mul="late").apply(),
        vllm_ir.report,
    ]
    for use in uses:
        with isolated(loader=lambda: runtime.current().discovery.get(discover)) as state:
            worker = threading.Thread(target=use, daemon=True)
            worker.start()
            worker.join(30)
            assert not worker.is_alive()
            assert "late" in state.registry.get("silu_and_mul").impls


def test_a_fresh_state_is_gone_afterwards() -> None:
    """Ops, implementations, orders and counts of a test do not reach the next one."""
    state = runtime.current()
    before = {op.name: dict(op.impls) for op in state.registry}
    with isolated({"VLLM_IR_COUNTERS": "1", "VLLM_IR_STRICT": "1"}) as inner:
        assert inner is state
        vllm_ir.register_op(name="passing")(silu)
        ops.silu_and_mul.register_impl("passing")(silu)
        ops.silu_and_mul.set_default("passing")
        assert (ops.silu_and_mul(X) == 7.0).all()
        assert vllm_ir.report().ops["silu_and_mul"].calls == {"passing": 1}
    with isolated():
        assert not vllm_ir.report().counting
        assert ops.silu_and_mul.get_priority() == ["native"]
    assert {op.name: dict(op.impls) for op in state.registry} == before
    assert not hasattr(ops, "passing")


def test_the_process_is_one() -> None:
    """Whoever asks gets the same state, and finds ops in it by name."""
    assert runtime.current() is runtime.current()
    assert runtime.find("rms_norm") is ops.rms_norm
    with pytest.raises(errors.UnknownOp, match="Did you mean 'rms_norm'"):
        runtime.find("rms_nrom")


def test_counting_starts_when_a_program_asks_and_keeps_its_orders(state: Runtime) -> None:
    """Calls before are not counted, calls after are, and a default that was set stays."""
    ops.silu_and_mul.register_impl("counted_provider")(silu)
    ops.silu_and_mul.set_default(["counted_provider"])
    ops.silu_and_mul(X)
    state.count_calls()
    ops.silu_and_mul(X)
    assert state.board(ops.silu_and_mul).ledger.calls() == {"counted_provider": 1}
