"""Fills hold what their names say, in every dtype."""

from __future__ import annotations

import pytest
import torch
from vllm_ir_testkit.fills import FILLS, ties

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_there(dtype: torch.dtype) -> None:
    """NaN, both infinities, numbers below the smallest normal one, and a zero with a sign."""
    x = torch.randn(4, 64).to(dtype)
    assert FILLS["nan"](x).isnan().sum() == 1
    infinite = FILLS["infinite"](x)
    assert set(infinite[infinite.isinf()].tolist()) == {float("inf"), float("-inf")}
    small = FILLS["subnormal"](x).double().abs()
    assert small.max() < torch.finfo(dtype).smallest_normal
    assert small.min() > 0
    zeros = FILLS["negative_zero"](x)
    assert (zeros == 0).all()
    assert zeros.signbit().sum() == zeros.numel() // 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_boundary_values_lie_midway(dtype: torch.dtype) -> None:
    """A good share of the sums of two such numbers is no number of the dtype."""
    torch.manual_seed(0)
    a, b = (FILLS["boundary"](torch.randn(64, 64).to(dtype)).float() for _ in range(2))
    total = a + b
    assert (total.to(dtype).float() != total).float().mean() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ties_lie_midway_between_neighbours(dtype: torch.dtype) -> None:
    """Rounding a tie up and down is equally far."""
    torch.manual_seed(0)
    weight = ties(torch.empty(128), dtype)
    below, above = (weight * (1 + sign * 2.0**-12) for sign in (-1, 1))
    assert torch.equal(above.to(dtype).float() - weight, weight - below.to(dtype).float())


def test_an_input_is_never_written() -> None:
    """A fill makes a tensor of its own."""
    for fill in FILLS.values():
        x = torch.randn(4, 8)
        before = x.clone()
        fill(x)
        assert torch.equal(x, before)
