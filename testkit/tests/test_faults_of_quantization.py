"""Deliberately wrong quantisations, one per fault: the check that owns the fault catches it, in every dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import implements, ops
from vllm_ir.ops.quantization import FP8_MAX, saturate
from vllm_ir_testkit import checks
from vllm_ir_testkit.cases import Case
from vllm_ir_testkit.outcome import FAILED
from vllm_ir_testkit.variants import variants_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir import IrOpImpl
    from vllm_ir_testkit import TestManager

E4M3 = torch.float8_e4m3fn
Pair = tuple[Tensor, Tensor]


def static(body: Callable[[Tensor, Tensor, torch.dtype], Tensor]) -> IrOpImpl:
    """Return a static_quant_fp8 of provider `wrong` with a body of its own."""

    @implements("static_quant_fp8", provider="wrong")
    def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
        """Run the body."""
        return body(x, scale, dtype)

    return static_quant_fp8


def dynamic(body: Callable[[Tensor, bool, Tensor | None, torch.dtype], Pair]) -> IrOpImpl:
    """Return a dynamic_quant_fp8 of provider `wrong` with a body of its own."""

    @implements("dynamic_quant_fp8", provider="wrong")
    def dynamic_quant_fp8(
        x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
    ) -> tuple[Tensor, Tensor]:
        """Run the body."""
        return body(x, per_token, scale_ub, dtype)

    return dynamic_quant_fp8


def group(body: Callable[[Tensor, int, bool, bool, torch.dtype], Pair]) -> IrOpImpl:
    """Return a dynamic_group_quant_fp8 of provider `wrong` with a body of its own."""

    @implements("dynamic_group_quant_fp8", provider="wrong")
    def dynamic_group_quant_fp8(
        x: Tensor,
        group_size: int,
        column_major_scales: bool = False,
        use_ue8m0: bool = False,
        dtype: torch.dtype = torch.float8_e4m3fn,
    ) -> tuple[Tensor, Tensor]:
        """Run the body."""
        return body(x, group_size, column_major_scales, use_ue8m0, dtype)

    return dynamic_group_quant_fp8


def right_static(x: Tensor, scale: Tensor, dtype: torch.dtype = E4M3) -> Tensor:
    """Return native's result."""
    result: Tensor = ops.static_quant_fp8.declaration.native(x, scale, dtype)
    return result


def right_dynamic(*args: Any) -> Pair:
    """Return native's results."""
    result: Pair = ops.dynamic_quant_fp8.declaration.native(*args)
    return result


def right_group(*args: Any) -> Pair:
    """Return native's results."""
    result: Pair = ops.dynamic_group_quant_fp8.declaration.native(*args)
    return result


def away_from_zero(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Round ties away from zero: a hair is added to every magnitude."""
    wide = x.float() * scale.reciprocal()
    return saturate(torch.nextafter(wide, wide * 2), dtype)


def unsaturated(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Let what is too large become NaN, as a cast without a clamp does on a GPU."""
    wide = x.float() * scale.reciprocal()
    return torch.where(wide.abs() > FP8_MAX[dtype], torch.nan, wide).to(dtype).contiguous()


def wide_limit(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Saturate at what the dtype can hold; e4m3fnuz holds more than the op gives."""
    limit = torch.finfo(dtype).max
    return (x.float() * scale.reciprocal()).clamp(-limit, limit).to(dtype).contiguous()


def narrow_arithmetic(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiply in x's dtype."""
    return saturate((x * scale.reciprocal().to(x.dtype)).float(), dtype)


def one_scale(x: Tensor, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype) -> Pair:
    """Take the tensor's largest magnitude for every row."""
    quantized, scale = right_dynamic(x, False, scale_ub, dtype)  # noqa: FBT003 - by position, as the op is called
    return quantized, scale.expand((*x.shape[:-1], 1)).contiguous() if per_token else scale


def boundless(x: Tensor, per_token: bool, _scale_ub: Tensor | None, dtype: torch.dtype) -> Pair:
    """Forget the bound."""
    return right_dynamic(x, per_token, None, dtype)


def zero_scale(x: Tensor, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype) -> Pair:
    """Give a scale of zero for zeros."""
    quantized, scale = right_dynamic(x, per_token, scale_ub, dtype)
    return quantized, torch.where(scale <= 1 / (512 * FP8_MAX[dtype]), 0.0, scale)


def divided(x: Tensor, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype) -> Pair:
    """Divide by the scale, where native multiplies by its inverse."""
    _, scale = right_dynamic(x, per_token, scale_ub, dtype)
    return saturate(x.float() / scale, dtype), scale


def inverted(x: Tensor, size: int, column_major: bool, ue8m0: bool, dtype: torch.dtype) -> Pair:
    """Multiply groups by an inverse, where native divides."""
    _, scales = right_group(x, size, column_major, ue8m0, dtype)
    spread = scales.reciprocal().repeat_interleave(size, dim=-1)
    return saturate(x.float() * spread, dtype), scales


def by_row(x: Tensor, size: int, column_major: bool, ue8m0: bool, dtype: torch.dtype) -> Pair:
    """Give every group the scale of its row."""
    _, scales = right_group(x, size, column_major, ue8m0, dtype)
    loudest = scales.amax(-1, keepdim=True)
    return saturate(x.float() / loudest, dtype), scales.copy_(loudest.expand(scales.shape))


def row_major(x: Tensor, size: int, _column_major: bool, ue8m0: bool, dtype: torch.dtype) -> Pair:
    """Lay scales row by row whatever is asked."""
    return right_group(x, size, False, ue8m0, dtype)  # noqa: FBT003 - by position, as the op is called


def nearest_power(x: Tensor, size: int, column_major: bool, ue8m0: bool, dtype: torch.dtype) -> Pair:
    """Round exponents to the nearest, where native rounds up."""
    _, scales = right_group(x, size, column_major, False, dtype)  # noqa: FBT003 - by position, as the op is called
    if ue8m0:
        scales.copy_(torch.exp2(torch.log2(scales).round()))
    return saturate(x.float() / scales.repeat_interleave(size, dim=-1), dtype), scales


FAULTS: tuple[tuple[str, str, Callable[[], IrOpImpl]], ...] = (
    ("ties rounded away from zero", "values", lambda: static(away_from_zero)),
    ("no saturation", "values", lambda: static(unsaturated)),
    ("saturated at the dtype's own limit", "values", lambda: static(wide_limit)),
    ("multiplied in the narrow dtype", "values", lambda: static(narrow_arithmetic)),
    (
        "divided where the scale is inverted, static",
        "values",
        lambda: static(lambda x, s, d: saturate(x.float() / s, d)),
    ),
    ("negative zero is lost", "values", lambda: static(lambda x, s, d: right_static(x.float() + 0.0, s, d))),
    ("the dtype is ignored", "values", lambda: static(lambda x, s, d: right_static(x, s).to(d))),
    ("one scale for all channels", "values", lambda: static(lambda x, s, d: right_static(x, s.flatten()[:1], d))),
    ("one scale for all rows", "values", lambda: dynamic(one_scale)),
    ("the bound is forgotten", "values", lambda: dynamic(boundless)),
    ("a scale of zero", "values", lambda: dynamic(zero_scale)),
    ("divided where the scale is inverted, dynamic", "values", lambda: dynamic(divided)),
    ("groups multiplied by an inverse", "values", lambda: group(inverted)),
    ("the scale of a row for its groups", "values", lambda: group(by_row)),
    ("powers of two rounded to the nearest", "values", lambda: group(nearest_power)),
    ("scales row by row whatever is asked", "layout", lambda: group(row_major)),
)


@pytest.mark.parametrize(("name", "owner", "make"), FAULTS, ids=[name.replace(" ", "_") for name, _, _ in FAULTS])
def test_each_fault_of_a_quantisation_is_caught(
    name: str, owner: str, make: Callable[[], IrOpImpl], manager: TestManager
) -> None:
    """The owning check is red when nothing else runs."""
    manager.add(make())
    report = manager.conformance("wrong", checks=[owner])
    (outcome,) = report.outcomes
    assert outcome.state == FAILED, (name, outcome)
    assert not any("the check itself" in each.case for each in outcome.findings), outcome.findings


@pytest.mark.parametrize(
    "make", [lambda: static(right_static), lambda: dynamic(right_dynamic), lambda: group(right_group)]
)
def test_right_quantisations_pass(make: Callable[[], IrOpImpl], manager: TestManager) -> None:
    """What is right is green in every check that catches what is wrong, and in those of memory and strides."""
    manager.add(make())
    names = ["values", "layout", "poison", "zero_tokens", "inputs"]
    report = manager.conformance("wrong", checks=names)
    assert not report.failed, [each.findings for each in report.failed]
    assert set(names) <= set(checks.NAMES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8"])
def test_ties_are_among_the_cases(name: str, dtype: str) -> None:
    """A quarter and more of the values of the variant lie midway between two neighbours, so rounding decides."""
    op = getattr(ops, name)
    variant = next(each for each in variants_of(op) if each.name == "ties")
    args = Case(tokens=4, hidden=64, dtype=dtype, variant=variant).build(op)
    quotients = (args[0].float() / 1.75).abs()
    ties = (quotients > 16) & (quotients < 32) & (quotients % 2 == 1)
    assert float(ties.float().mean()) > 0.15
    assert float(quotients.max()) == 448
