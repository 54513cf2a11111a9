"""A near miss says what the graph lacks in words that hold for whoever wrote the program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir.compile import Fusion

from core.tests.compile.passes.decoder_parts import GATED, WIDE, W

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.compile.passes.conftest import Fuser


def widened(x: torch.Tensor) -> Any:
    """Gate what was cast."""
    return ops.silu_and_mul(x.float())


def reshaped(x: torch.Tensor) -> Any:
    """Gate rows of another shape."""
    return ops.silu_and_mul(x.view(-1, 8)) * 2


def of_columns(x: torch.Tensor) -> Any:
    """Gate, and double an exponential of columns beside it."""
    return ops.silu_and_mul(x), x[:, :16].exp() * 2


def with_ones(x: torch.Tensor) -> Any:
    """Gate, and add ones to it."""
    return ops.silu_and_mul(x), torch.ones(16) * 2


def of_two(x: torch.Tensor, y: torch.Tensor) -> Any:
    """Gate, and treble something else."""
    return ops.silu_and_mul(x), y * 3


def example() -> tuple[Any, ...]:
    """Return one tensor."""
    return (torch.empty(2, 32),)


def half_example() -> tuple[Any, ...]:
    """Return one tensor in bfloat16."""
    return (torch.empty(2, 32, dtype=torch.bfloat16),)


def two_examples() -> tuple[Any, ...]:
    """Return two tensors."""
    return torch.empty(2, 32), torch.empty(2, 16)


@pytest.mark.parametrize(
    ("pattern", "like", "program", "said"),
    [
        (
            widened,
            half_example,
            ops.silu_and_mul,
            "'x' of silu_and_mul comes from an input of the graph, wanted a cast (to float32 in the pattern's example)",
        ),
        (
            reshaped,
            example,
            lambda x: ops.silu_and_mul(x) * 2,
            "'x' of silu_and_mul comes from an input of the graph, wanted a view",
        ),
        (
            of_columns,
            example,
            lambda x: (ops.silu_and_mul(x), x[:, :16].sin() * 2),
            "exp, which the pattern has, is missing: what it would read is read by sin",
        ),
        (
            of_columns,
            example,
            ops.silu_and_mul,
            "slice, which the pattern has, is missing: what it would read is read by silu_and_mul",
        ),
        (with_ones, example, ops.silu_and_mul, "ones, which the pattern has, is missing"),
        (
            of_two,
            two_examples,
            ops.silu_and_mul,
            "nothing here is 'y': the graph has no call of what the pattern makes of it",
        ),
    ],
)
def test_what_is_missing_is_named(
    pattern: Callable[..., Any], like: Callable[[], Any], program: Callable[..., Any], said: str, fuser: Fuser
) -> None:
    """With no name left out, and no word that only the matcher knows."""
    fusion = Fusion(name="own", pattern=pattern, replacement=pattern, example=like)
    fuser(program, GATED.float(), passes=[fusion])
    (miss,) = fuser.ran("own").near_misses
    assert miss.reason == said


def test_of_two_forms_the_one_that_found_more_tells(fuser: Fuser) -> None:
    """In float32 nobody is asked for a cast: the plain form found the sum's tensor."""
    fuser(lambda x, weight: ops.rms_norm(x + 1.0, weight, 1e-6), WIDE[0], W.float(), fusions=["add_norm"])
    (miss,) = fuser.ran("add_norm").near_misses
    assert miss.reason == "the second argument of add is 1.0, wanted a tensor"
