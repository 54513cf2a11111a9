"""The contract on numerics."""

from __future__ import annotations

import pytest
import torch
from vllm_ir import ops
from vllm_ir_testkit import bounds
from vllm_ir_testkit.distance import Comparison

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("comparison", "complains"),
    [
        (Comparison(64), None),
        (Comparison(64, differing=1, worst_units=1), None),
        (Comparison(64, differing=2, worst_units=1), "allowed is one in 10,000"),
        (Comparison(64, differing=1, worst_units=2), "up to 2 units"),
        (Comparison(100_000, differing=11, worst_units=1), None),
        (Comparison(100_000, differing=12, worst_units=1), "allowed is one in 10,000"),
        (Comparison(64, special=1), "NaN or infinite"),
        (Comparison(64, zero_signs=1), "another sign"),
    ],
)
def test_a_narrow_result(comparison: Comparison, complains: str | None) -> None:
    """One element in ten thousand by one unit; a small result may hold the one."""
    said = bounds.complaint(comparison, BF16)
    assert said is None if complains is None else complains in str(said)


def test_a_wide_result_is_held_to_the_tolerance_alone() -> None:
    """Units do not count for float32."""
    assert bounds.complaint(Comparison(64, differing=64, worst_units=9), torch.float32) is None
    assert "beyond the tolerance" in str(bounds.complaint(Comparison(64, beyond=1), torch.float32))


def test_all_results_together_are_held_to_the_share() -> None:
    """Many small results with one difference each are too many."""
    total = bounds.Total()
    for _ in range(20):
        total.add(Comparison(100, differing=1, worst_units=1))
    assert "one in 100" in str(bounds.total_complaint(total, BF16))
    assert bounds.total_complaint(total, torch.float32) is None
    assert bounds.total_complaint(bounds.Total(elements=100, differing=1), BF16) is None


def test_no_absolute_tolerance_hides_subnormal_numbers() -> None:
    """Where inputs are tiny only units of the smallest number are left."""
    assert bounds.tolerance(ops.rms_norm, torch.float32, tiny=False)[0] == 1e-5
    assert bounds.tolerance(ops.rms_norm, torch.float32, tiny=True)[0] < 1e-44
    assert bounds.tolerance(ops.rms_norm, BF16, tiny=False) == (0.0, 0.0)
