"""The curated calls hold what the contract lists, for every op of the core."""

from __future__ import annotations

import pytest
from vllm_ir import ops
from vllm_ir_testkit.subject import legal_cases


@pytest.mark.parametrize("name", ops.__all__)
def test_every_op_is_tried_with_all_that_is_unusual(name: str) -> None:
    """Zero tokens, one to four dimensions, views, odd and huge sizes, special values, and other parameters."""
    cases = legal_cases(getattr(ops, name), "cpu")
    assert {case.dtype for case in cases} == {"float32", "bfloat16", "float16"}
    assert {len(case.lead) for case in cases if case.lead is not None} >= {0, 2, 3}
    assert {case.layout for case in cases} >= {"packed", "transposed", "shifted", "stepped", "repeated"}
    assert {case.fill for case in cases} >= {"nan", "infinite", "subnormal", "negative_zero", "boundary"}
    assert any(not case.tokens for case in cases)
    assert any(case.hidden == 16384 for case in cases)
    if name not in {"rotary_embedding", "fused_qk_norm_rope"}:  # whose rows are whole heads
        assert any(case.hidden == 1 for case in cases)
        assert any(case.hidden == 129 for case in cases)


def test_norms_are_tried_without_a_weight_and_with_one_of_another_dtype() -> None:
    """The contract's special cases for weights."""
    for op in (ops.rms_norm, ops.fused_add_rms_norm):
        tried = {(case.dtype, case.parameters) for case in legal_cases(op, "cpu")}
        assert tried >= {("bfloat16", "none"), ("bfloat16", "float32"), ("bfloat16", "ties"), ("float32", "bfloat16")}
