"""Values: what the bounds are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm_ir import ops
from vllm_ir_testkit import Case
from vllm_ir_testkit.checks.values import disagreement, measured
from vllm_ir_testkit.plan import make_plan

if TYPE_CHECKING:
    from vllm_ir_testkit import TestManager


def test_the_absolute_tolerance_grows_with_wide_results_only(manager: TestManager) -> None:
    """What a cancellation leaves scales with the inputs; for ordinary inputs nothing is given away."""
    del manager
    subject = make_plan("native", ["gelu_and_mul"]).subjects[0]
    atol = ops.gelu_and_mul.get_tolerance(torch.float32)["atol"]
    native = torch.tensor([0.0, 900.0])
    got = native + torch.tensor([20 * atol, 0.0])
    assert measured(subject, Case(fill="wide"), got, native).beyond == 0
    assert measured(subject, Case(), got, native).beyond == 1


def test_another_shape_or_number_of_results_is_told(manager: TestManager) -> None:
    """Nothing that cannot be compared passes."""
    del manager
    subject = make_plan("native", ["silu_and_mul"]).subjects[0]
    one, other = torch.zeros(2, 3), torch.zeros(3, 2)
    assert disagreement(subject, Case(), [one], [other], {}) == (
        "torch.float32 (2, 3), native has torch.float32 (3, 2)"
    )
    assert disagreement(subject, Case(), [one, one], [one], {}) == "2 results, native has 1"
