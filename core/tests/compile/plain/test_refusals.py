"""Who runs an op in plain torch.compile where candidates refuse, or cannot be judged before the call."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops, register_op
from vllm_ir.errors import NoImplementation, RefusedArguments
from vllm_ir.isolation import isolated
from vllm_ir.verdict import Unsupported

rms: Any = ops.rms_norm


def trailing(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Refuse rows of 16 for a reason that no batch changes."""
    del weight, epsilon, variance_size
    return Unsupported("rows of 16") if x.shape[-1] == 16 else True


def leading(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Any:
    """Take more than six tokens, which a predicate must not ask for."""
    del weight, epsilon, variance_size
    return x.shape[0] > 6


def test_native_behind_a_refusal_is_inlined(plain: Any, add_provider: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A refusal that fake tensors can tell lets native take the call, and is told as an eager call tells it."""
    add_provider(rms, "a", 2.0, supports_args=trailing)
    rms.set_default("a")
    args = plain.inputs()
    for value in args[:2]:
        torch._dynamo.mark_dynamic(value, 0)
    with caplog.at_level(logging.WARNING, logger="vllm_ir"):
        got, calls = plain.recorded(plain.layer, *args)
    assert calls == []
    assert "provider a, named by set_default, refuses: rows of 16" in caplog.text
    torch.testing.assert_close(got, plain.native_layer(*args))


def test_a_refusal_that_depends_on_an_open_size_is_left_to_the_call(plain: Any, add_provider: Any) -> None:
    """Where trailing sizes are open, too, the graph serves rows that a provider takes and rows that it refuses."""
    add_provider(rms, "a", 2.0, supports_args=trailing)
    rms.set_default("a")
    recorder = plain.Recorder()
    run: Any = torch.compile(plain.layer, fullgraph=True, dynamic=True, backend=recorder)
    with torch.no_grad():
        for width in (16, 24):
            args = torch.randn(5, width), torch.randn(5, width), torch.rand(width)
            torch.testing.assert_close(run(*args), plain.layer(*args))
    assert recorder.calls == [[rms.torch_op]]


def test_a_predicate_that_asks_for_the_batch_is_asked_when_the_call_runs(plain: Any, add_provider: Any) -> None:
    """One graph serves every batch, each gets what eager gives it, and no guard on the batch is added."""
    add_provider(rms, "a", 2.0, supports_args=leading)
    rms.set_default("a")
    recorder = plain.Recorder()
    run: Any = torch.compile(plain.layer, fullgraph=True, dynamic=True, backend=recorder)
    with torch.no_grad():
        for tokens in (5, 9, 6, 7):
            args = plain.inputs(tokens)
            torch.testing.assert_close(run(*args), plain.layer(*args))
    assert recorder.calls == [[rms.torch_op]]


def test_strict_mode_raises_as_an_eager_call_does(plain: Any, add_provider: Any) -> None:
    """A refusal of what a user named reaches the caller by its own class, when the call runs."""
    with isolated({"VLLM_IR_STRICT": "1"}):
        add_provider(rms, "a", 2.0, supports_args=trailing)
        rms.set_default("a")
        run: Any = torch.compile(plain.layer, fullgraph=True, backend=plain.Recorder())
        with torch.no_grad(), pytest.raises(RefusedArguments, match="rows of 16"):
            run(*plain.inputs())


def test_batch_invariance_keeps_every_op_whole(plain: Any) -> None:
    """Compiled native gives no guarantee, so where one is asked for nothing is inlined."""

    @register_op(batch_invariant=True)
    def guaranteed(x: Tensor) -> Tensor:
        """Double x."""
        return x * 2

    for variables, kept in (({}, []), ({"VLLM_BATCH_INVARIANT": "1"}, ["vllm_ir::guaranteed"])):
        torch._dynamo.reset()
        x = torch.randn(4, 8)
        with isolated(variables):
            got, calls = plain.recorded(lambda x: guaranteed(x) + 1, x)
        assert [call.name() for call in calls] == kept
        torch.testing.assert_close(got, x * 2 + 1)


def test_nothing_that_may_run_raises_as_an_eager_call_does(plain: Any) -> None:
    """Where no candidate is admitted the graph compiles, and its call says why, like an eager one."""

    @register_op
    def unguaranteed(x: Tensor) -> Tensor:
        """Double x."""
        return x * 2

    with isolated({"VLLM_BATCH_INVARIANT": "1"}), torch.no_grad(), pytest.raises(NoImplementation):
        torch.compile(unguaranteed, fullgraph=True, backend=plain.Recorder())(torch.randn(4, 8))
