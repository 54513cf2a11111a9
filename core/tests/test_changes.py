"""Everything that may change an order raises the count, and open scopes are seen by all."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import IrOpPriorityConfig, KernelConfig, ops, register_op
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime


def declare() -> None:
    """Register an op."""

    @register_op(name="an_op_that_changes_things")
    def changing(x: torch.Tensor) -> torch.Tensor:
        """Be an op."""
        return x.clone()

    assert changing.name


WAYS: dict[str, Callable[[Runtime], object]] = {
    "a default": lambda _state: ops.rms_norm.set_default("native"),
    "a configuration": lambda _state: KernelConfig({"rms_norm": "native"}).apply(),
    "a configuration for every op": lambda _state: IrOpPriorityConfig.with_default("native").apply(),
    "an implementation": lambda _state: ops.rms_norm.register_impl("a")(ops.rms_norm.declaration.native),
    "an op": lambda _state: declare(),
    "what discovery found": lambda state: state.adopt(Landscape()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_change_raises_the_count(state: Runtime, way: str) -> None:
    """So whoever keeps what follows from priorities asks again."""
    before = state.changes.epoch
    WAYS[way](state)
    assert state.changes.epoch > before


def test_another_state_raises_the_count(state: Runtime) -> None:
    """On the way in and on the way out."""
    counts = [state.changes.epoch]
    with isolated():
        counts.append(state.changes.epoch)
    counts.append(state.changes.epoch)
    assert counts == sorted(set(counts))


def test_calls_and_scopes_change_nothing(state: Runtime) -> None:
    """The count is about the process."""
    x = torch.ones(2, 4)
    call: Any = ops.rms_norm
    call(x, None, 1e-5)
    before = state.changes.epoch
    with call.set_priority("native"):
        call(x, None, 1e-5)
    assert state.changes.epoch == before


def test_open_scopes_are_seen(state: Runtime) -> None:
    """Of every op, until the last context that can see one is gone."""
    assert not state.changes.scopes
    with ops.rms_norm.set_priority("native"):
        assert len(state.changes.scopes) == 1
        with ops.silu_and_mul.set_priority("native"):
            assert len(state.changes.scopes) == 2
    gc.collect()
    assert not state.changes.scopes


def test_a_fresh_state_sees_no_scope_of_another(state: Runtime) -> None:
    """A test that begins does not pay for a scope that somebody left open."""
    with ops.rms_norm.set_priority("native"):
        assert state.changes.scopes
        with isolated():
            assert not state.changes.scopes
