"""The root-mean-square norms round where the contract says, on every layout, and a wrong order would be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

EPSILON = 1e-6
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((64,), (4, 64), (2, 3, 64), (2, 1, 3, 64), (3, 1), (2, 7), (5, 33), (2, 16384), (0, 64), (2, 0, 8))


def wide(x: Tensor) -> Tensor:
    """Return x in the dtype of the arithmetic."""
    return x.double() if x.dtype == torch.float64 else x.float()


def scale(x: Tensor, epsilon: float, size: int | None = None) -> Tensor:
    """Return one over the root mean square of the leading elements of each row."""
    measured = x[..., :size]
    return torch.rsqrt((measured * measured).mean(-1, keepdim=True) + epsilon)


def norm(x: Tensor, weight: Tensor | None, epsilon: float = EPSILON, size: int | None = None) -> Tensor:
    """Return what the contract says of rms_norm, step by step."""
    normalized = wide(x) * scale(wide(x), epsilon, size)
    if weight is None:
        return normalized.to(x.dtype).contiguous()
    rounded = normalized.to(weight.dtype)
    return (rounded * weight).to(x.dtype).contiguous()


def fused(
    x: Tensor, r: Tensor, weight: Tensor | None, epsilon: float = EPSILON, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return what the contract says of fused_add_rms_norm, step by step."""
    total = wide(x) + wide(r)
    normalized = total * scale(total, epsilon, size)
    if weight is not None:
        normalized = normalized.to(weight.dtype) * weight
    return normalized.to(x.dtype).contiguous(), total.to(x.dtype).contiguous()


def sum_rounded_first(x: Tensor, r: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what comes out when the sum is rounded before the variance is taken: wrong."""
    total = (wide(x) + wide(r)).to(x.dtype)
    return norm(total, weight), total


def sum_in_the_dtype(x: Tensor, r: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what comes out when the normalised value is of the rounded sum, its variance not: wrong."""
    total = wide(x) + wide(r)
    normalized = wide(total.to(x.dtype)) * scale(total, EPSILON)
    out = normalized if weight is None else normalized.to(weight.dtype) * weight
    return out.to(x.dtype), total.to(x.dtype)


def cast_after_the_multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Return what comes out when the cast is moved past the weight multiply: wrong."""
    return (wide(x) * scale(wide(x), EPSILON) * weight.float()).to(x.dtype)


def cast_to_the_rows_dtype(x: Tensor, weight: Tensor) -> Tensor:
    """Return what comes out when the normalised value is rounded to x's dtype instead of the weight's: wrong."""
    return ((wide(x) * scale(wide(x), EPSILON)).to(x.dtype) * weight).to(x.dtype)


def weight_of(kind: str, size: int, dtype: torch.dtype) -> Tensor | None:
    """Return no weight, one of the rows' dtype, or one of another."""
    if kind == "none":
        return None
    other = torch.float32 if dtype is not torch.float32 else torch.bfloat16
    return torch.randn(size).to(dtype if kind == "same" else other)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding(shape: tuple[int, ...], dtype: torch.dtype, lay: Any, same_bits: Any, sound: Any) -> None:
    """Both norms have the bits of the contract's steps, in every shape, dtype, weight and layout."""
    x, r = lay(torch.randn(shape).to(dtype)), lay(torch.randn(shape).to(dtype))
    kept = [x.clone(), r.clone()]
    for kind in ("none", "same", "other"):
        weight = weight_of(kind, shape[-1], dtype)
        inputs = [x, r] if weight is None else [x, r, weight]
        for run in (ops.rms_norm, ops.rms_norm.torch_op):
            result = run(x, weight, EPSILON)
            same_bits(result, norm(x, weight))
            sound(result, inputs)
        for run in (ops.fused_add_rms_norm, ops.fused_add_rms_norm.torch_op):
            results = run(x, r, weight, EPSILON)
            same_bits(results, fused(x, r, weight))
            sound(results, inputs)
    same_bits([x, r], kept)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("kind", ["none", "same", "other"])
def test_float8_is_a_floating_point_dtype_like_any_other(dtype: torch.dtype, kind: str) -> None:
    """The arithmetic is in float32, and only the results are rounded to eight bits."""
    x, r, weight = torch.randn(4, 64).to(dtype), torch.randn(4, 64).to(dtype), weight_of(kind, 64, dtype)
    results = (ops.rms_norm(x, weight, EPSILON), *ops.fused_add_rms_norm(x, r, weight, EPSILON))
    for result, wanted in zip(results, (norm(x, weight), *fused(x, r, weight)), strict=True):
        assert result.dtype == dtype
        assert torch.equal(result.view(torch.uint8), wanted.view(torch.uint8))
    assert results[0].float().isfinite().all()
    assert not torch.equal(results[0].float(), x.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["none", "same", "other"])
@pytest.mark.parametrize("wrong", [sum_rounded_first, sum_in_the_dtype])
def test_a_sum_rounded_too_early_would_be_seen(dtype: torch.dtype, kind: str, wrong: Any, same_bits: Any) -> None:
    """The values of these tests tell the contract from a residual sum that is rounded first."""
    x, r = torch.randn(16, 64).to(dtype), torch.randn(16, 64).to(dtype)
    weight = weight_of(kind, 64, dtype)
    results = ops.fused_add_rms_norm(x, r, weight, EPSILON)
    same_bits(results, fused(x, r, weight))
    out, total = wrong(x, r, weight)
    same_bits(results[1], total)
    assert not torch.equal(results[0], out)


def test_the_sum_on_a_boundary(same_bits: Any) -> None:
    """One plus a quarter of a bfloat16 unit rounds back to one, but counts in the variance."""
    x = torch.tensor([[1.0, 1.0, 1.0, 3.0]], dtype=torch.bfloat16)
    r = torch.tensor([[2.0**-9, 2.0**-9, 2.0**-9, 2.0**-7]], dtype=torch.bfloat16)
    out, total = ops.fused_add_rms_norm(x, r, torch.full((4,), 1.0), 0.0)
    assert torch.equal(total, x + r)
    assert torch.equal(total, torch.tensor([[1.0, 1.0, 1.0, 3.0]], dtype=torch.bfloat16))
    exact = [1 + 2.0**-9] * 3 + [3 + 2.0**-7]
    root = (sum(value * value for value in exact) / 4) ** 0.5
    same_bits(out, torch.tensor([[value / root for value in exact]]).to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cast_after_the_multiply_would_be_seen(dtype: torch.dtype, same_bits: Any) -> None:
    """With a weight of the rows' dtype these values tell where the cast stands."""
    x, weight = torch.randn(16, 64).to(dtype), torch.randn(64).to(dtype)
    result = ops.rms_norm(x, weight, EPSILON)
    same_bits(result, norm(x, weight))
    assert not torch.equal(result, cast_after_the_multiply(x, weight))
    fused_result = ops.fused_add_rms_norm(x, torch.zeros_like(x), weight, EPSILON)[0]
    assert not torch.equal(fused_result, cast_after_the_multiply(x, weight))


@pytest.mark.parametrize(
    ("rows", "weights"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.bfloat16)],
    ids=str,
)
def test_a_cast_to_the_rows_dtype_would_be_seen(rows: torch.dtype, weights: torch.dtype, same_bits: Any) -> None:
    """With a weight of another dtype these values tell to which dtype the normalised value is rounded."""
    x, weight = torch.randn(16, 64).to(rows), (torch.randn(64).float() + 1).to(weights)
    result = ops.rms_norm(x, weight, EPSILON)
    same_bits(result, norm(x, weight))
    assert not torch.equal(result, cast_to_the_rows_dtype(x, weight))
    fused_result = ops.fused_add_rms_norm(x, torch.zeros_like(x), weight, EPSILON)[0]
    same_bits(fused_result, norm(x, weight))


def test_double_precision_stays(same_bits: Any) -> None:
    """A float64 row is normalised in float64: sixteen digits agree with exact arithmetic."""
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    same_bits(ops.rms_norm(x, None, 0.0), x * torch.rsqrt(torch.tensor(12.5, dtype=torch.float64)))
    torch.testing.assert_close(ops.rms_norm(x, None, 0.0), x / 12.5**0.5, rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_variance_of_leading_elements(dtype: torch.dtype, size: int, same_bits: Any) -> None:
    """The variance is of so many leading elements, and all elements are normalised by it."""
    x, r, weight = torch.randn(4, 64).to(dtype), torch.randn(4, 64).to(dtype), torch.randn(64).to(dtype)
    same_bits(ops.rms_norm(x, weight, EPSILON, size), norm(x, weight, EPSILON, size))
    same_bits(ops.fused_add_rms_norm(x, r, weight, EPSILON, size), fused(x, r, weight, EPSILON, size))
    if size < 64:
        assert not torch.equal(ops.rms_norm(x, weight, EPSILON, size), ops.rms_norm(x, weight, EPSILON))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "same", "other"])
def test_special_values(dtype: torch.dtype, kind: str, same_bits: Any) -> None:
    """A NaN or an infinity spoils its own row only; subnormal rows and negative zeros come out as the steps say."""
    tiny, top = torch.finfo(dtype).smallest_normal / 4, torch.finfo(dtype).max
    x = torch.tensor(
        [
            [float("nan"), 1.0, 2.0, 3.0],
            [float("inf"), 1.0, 2.0, 3.0],
            [-float("inf"), float("inf"), 2.0, 3.0],
            [tiny, -tiny, 0.0, tiny],
            [-0.0, 0.0, -0.0, 1.0],
            [-0.0, -0.0, -0.0, -0.0],
            [top, -top, top, top],
            [1.0, 2.0, 3.0, 4.0],
        ],
        dtype=torch.float64,
    ).to(dtype)
    weight = weight_of(kind, 4, dtype)
    result = ops.rms_norm(x, weight, EPSILON)
    same_bits(result, norm(x, weight))
    same_bits(ops.fused_add_rms_norm(x, -x, weight, EPSILON), fused(x, -x, weight))
    assert result[0].isnan().all()
    assert result[1, 0].isnan()
    assert result[3:6].isfinite().all()
    if kind == "none":
        assert torch.equal(result[5].signbit(), torch.ones(4, dtype=torch.bool))


@given(
    rows=st.lists(st.integers(0, 3), max_size=3),
    hidden=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(["none", "same", "other"]),
    epsilon=st.sampled_from([0.0, 1e-6, 1e-5, 0.5, 10.0]),
    part=st.floats(0.01, 1.0),
)
def test_any_shape(rows: list[int], hidden: int, dtype: torch.dtype, kind: str, epsilon: float, part: float) -> None:
    """Whatever the sizes, both norms have the bits of the contract's steps."""
    shape = (*rows, hidden)
    size = max(1, int(hidden * part))
    x, r, weight = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype), weight_of(kind, hidden, dtype)
    result = ops.rms_norm(x, weight, epsilon, size)
    assert torch.equal(result, norm(x, weight, epsilon, size))
    results = ops.fused_add_rms_norm(x, r, weight, epsilon, size)
    assert all(torch.equal(a, b) for a, b in zip(results, fused(x, r, weight, epsilon, size), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_each_row_has_unit_length(dtype: torch.dtype) -> None:
    """The mean of squares of a result without weight is one, whatever the scale of the row."""
    for factor in (1e-3, 1.0, 1e3):
        result = ops.rms_norm((torch.randn(8, 576) * factor).to(dtype), None, 0.0).double()
        torch.testing.assert_close(result.pow(2).mean(-1), torch.ones(8, dtype=torch.float64), rtol=5e-3, atol=0)


def test_a_weight_with_steps_of_two(same_bits: Any) -> None:
    """A weight that is a view, too, is taken as it lies."""
    x, weight = torch.randn(3, 8), torch.randn(16)[::2]
    same_bits(ops.rms_norm(x, weight, EPSILON), norm(x, weight.clone()))


def test_maybe_inplace_of_native_donates_nothing(same_bits: Any, sound: Callable[..., None]) -> None:
    """Native's `maybe_inplace` has the same bits and leaves its inputs alone."""
    op: Any = ops.fused_add_rms_norm
    x, r, weight = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
    results = op.maybe_inplace(x, r, weight, EPSILON)
    same_bits(results, fused(x, r, weight))
    sound(results, [x, r, weight])
