"""A case is a recipe: it prints as one line and makes the same tensors every time."""

from __future__ import annotations

import pytest
import torch
from vllm_ir import ops
from vllm_ir_testkit import Case
from vllm_ir_testkit.errors import UnknownPart
from vllm_ir_testkit.variants import variants_of


def test_the_same_recipe_makes_the_same_tensors() -> None:
    """Two builds are equal in values and strides, and another seed is not."""
    case = Case(tokens=6, lead=(2, 3), dtype="bfloat16", layout="packed")
    a, b = (case.build(ops.rms_norm)[0] for _ in range(2))
    assert torch.equal(a, b)
    assert a.stride() == b.stride()
    assert a.shape == (2, 3, 64)
    other = Case(tokens=6, lead=(2, 3), dtype="bfloat16", layout="packed", seed=1).build(ops.rms_norm)[0]
    assert not torch.equal(a, other)


def test_one_token_without_a_leading_size_is_a_row() -> None:
    """One-dimensional activations; positions keep their one element."""
    case = Case(tokens=1, lead=())
    assert case.build(ops.rms_norm)[0].shape == (64,)
    positions, query, *_ = case.build(ops.rotary_embedding)
    assert positions.shape == (1,)
    assert query.shape == (64,)


@pytest.mark.parametrize(
    ("parameters", "seen"),
    [("none", None), ("float32", torch.float32), ("ties", torch.float32), ("stepped", torch.bfloat16)],
)
def test_parameters_are_changed_and_activations_are_not(parameters: str, seen: torch.dtype | None) -> None:
    """A weight left out, of another dtype, midway between neighbours, or with a stride."""
    x, weight, _ = Case(dtype="bfloat16", parameters=parameters).build(ops.rms_norm)
    assert x.dtype == torch.bfloat16
    assert (None if weight is None else weight.dtype) == seen
    if parameters == "stepped":
        assert weight.stride() == (2,)


def test_a_case_prints_what_is_unusual_about_it() -> None:
    """The line that a finding carries."""
    assert str(Case()) == "float32 5"
    assert str(Case(tokens=1, lead=(), hidden=7)) == "float32 rowx7"
    case = Case(tokens=6, lead=(2, 3), dtype="float16", layout="packed", fill="nan", parameters="none", seed=2)
    assert str(case) == "float16 2x3, packed, nan, parameters none, seed 2"


def test_a_part_that_does_not_exist_is_refused_with_a_suggestion() -> None:
    """A typing error is told at once, not in the middle of a run."""
    with pytest.raises(UnknownPart, match=r"no layout 'paked'.*Did you mean 'packed'"):
        Case(layout="paked")
    with pytest.raises(UnknownPart, match="a product of 5"):
        Case(tokens=5, lead=(2, 3))


def test_variants_of_the_cores_ops_are_legal() -> None:
    """Native takes every variant, so none of them is silently left out."""
    for op in (ops.rms_norm, ops.fused_add_rms_norm, ops.gelu_and_mul, ops.silu_and_mul, ops.rotary_embedding):
        for variant in variants_of(op):
            args = Case(variant=variant).build(op)
            op.impls["native"].impl_fn(*args)
    assert {v.name for v in variants_of(ops.rotary_embedding)} >= {"is_neox_style=False", "heads apart"}
