"""The strategies that the kit exports."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import find, given, settings
from vllm_ir import ops
from vllm_ir_testkit import Case, strategies


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(strategies.arguments(ops.rms_norm))
def test_drawn_arguments_are_legal(args: tuple[Any, ...]) -> None:
    """Native takes whatever is drawn."""
    result = ops.rms_norm.impls["native"].impl_fn(*args)
    assert result.shape == args[0].shape


def test_everything_unusual_can_be_drawn() -> None:
    """A search reaches zero tokens, four-dimensional views and rows."""
    quick = settings(max_examples=4000, deadline=None, derandomize=True, database=None)
    drawn = strategies.cases(ops.rms_norm)
    assert find(drawn, lambda case: not case.tokens, settings=quick).tokens == 0
    assert find(drawn, lambda case: case.lead == (), settings=quick).tokens == 1
    assert len(find(drawn, lambda c: len(c.lead or ()) == 3 and c.layout == "packed", settings=quick).lead or ()) == 3


def test_a_draw_shrinks_to_the_plain_call() -> None:
    """The simplest case of a dtype is contiguous, normal and small."""
    fixed = settings(deadline=None, derandomize=True, database=None)
    found = find(strategies.cases(ops.rms_norm, ["float16"]), lambda case: case.tokens > 0, settings=fixed)
    assert found == Case(tokens=1, dtype="float16", lead=())
    assert torch.float16 == found.torch_dtype
