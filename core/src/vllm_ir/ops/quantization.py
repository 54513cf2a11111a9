"""What quantisation to 8-bit floating point means: a scale, a clamp to the largest value, a cast to the nearest even.

The arithmetic is part of the meaning and is in float32 whatever the dtype of x is. Values beyond the limit saturate, so
that a large one never turns into NaN; NaN stays NaN; zeros keep their sign where the dtype has one for them.

Scales are told apart by how they are used: one that is given, or found for a row or a tensor, is inverted first, and
x is multiplied by the inverse; a group is divided by its own. This is how vLLM's native functions do it, and the two
differ in the last place.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.ops.checks import check_filled, check_floating, check_fp8, check_group_size, check_scale

FP8_MAX: Final = MappingProxyType(
    {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 224.0, torch.float8_e5m2: 57344.0}
)
"""The largest magnitude that quantisation gives, by dtype.

It is the dtype's own, but for e4m3fnuz, which could hold 240: vLLM takes 224 there (`get_fp8_min_max` in its
`quant_utils.py`), since dynamic scales lost accuracy with 240, and scales must mean the same on both sides.
"""

_STEPS: Final = 512.0
"""A scale is at least one over so many times the limit, as in vLLM, so that its inverse stays finite."""

_LEAST_PEAK: Final = 1e-10
"""What the largest magnitude of a group counts for at least, as in vLLM; no scale of a group is zero."""

_MANTISSA: Final = 0x007FFFFF
_EXPONENT: Final = 0x7F800000


def saturate(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values as 8-bit floats, contiguous: clamped to the limit, rounded to the nearest even."""
    limit = FP8_MAX[dtype]
    return x.clamp(-limit, limit).to(dtype).contiguous()


def over_limit(peak: Tensor, dtype: torch.dtype) -> Tensor:
    """Return magnitudes over the limit of a dtype.

    The limit is a tensor of peak's device: over a plain number a GPU multiplies by a rounded inverse.
    """
    return peak / torch.full_like(peak, FP8_MAX[dtype])


def to_power_of_two(scales: Tensor) -> Tensor:
    """Return positive normal float32 values rounded up to a power of two, by their bits; NaN and infinity stay."""
    raised = ((scales.view(torch.int32) + _MANTISSA) & _EXPONENT).view(torch.float32)
    return torch.where(scales.isnan(), scales, raised)


def column_major(scales: Tensor) -> Tensor:
    """Return scales [..., groups] with the tokens next to each other in memory."""
    if scales.dim() == 1:
        return scales
    laid = scales.flatten(0, -2).t().clone(memory_format=torch.contiguous_format).t()
    # A view would choose the stride of one token anew.
    return laid if scales.dim() == 2 else laid.view(scales.shape)  # noqa: PLR2004 - tokens and groups


@register_op(batch_invariant=True)
def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return x over a given scale as 8-bit floats.

    x is multiplied by the inverse of the scale, which is rounded to float32 first. Infinite values saturate.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        scale: float32, one value (of shape [] or [1]), or one for each element of a row ([hidden_size]).
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor of x's shape and the dtype asked for.

    Raises:
        WrongArgument: a dtype or the shape of the scale does not fit.
    """
    check_floating("static_quant_fp8", "x", x)
    check_scale("static_quant_fp8", "scale", scale, x.shape[-1])
    check_fp8("static_quant_fp8", dtype)
    return saturate(x.to(torch.float32) * scale.reciprocal(), dtype)


@register_op
def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return x as 8-bit floats with the scale that brings its largest magnitude to the limit of the dtype.

    The scale is that magnitude over the limit, at least 1 / (512 * limit); x is multiplied by its inverse. A NaN makes
    a NaN of the scale, and so of all that it scales; an infinity makes an infinite scale, zeros of the finite values
    and NaN of itself.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        per_token: one scale for each row; otherwise one for the whole tensor.
        scale_ub: float32, one value (of shape [] or [1]): what the largest magnitude counts for at most.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor of x's shape and the dtype asked for, and the scale in float32: [..., 1] per token, else
        [1], which for zero tokens is the least one.

    Raises:
        WrongArgument: a dtype or the shape of scale_ub does not fit, or a row has no elements.
    """
    check_floating("dynamic_quant_fp8", "x", x)
    check_filled("dynamic_quant_fp8", "x", x.shape[-1])
    if scale_ub is not None:
        check_scale("dynamic_quant_fp8", "scale_ub", scale_ub)
    check_fp8("dynamic_quant_fp8", dtype)
    wide = x.to(torch.float32)
    peak = wide.abs().amax(dim=-1, keepdim=True)
    if not per_token:
        # No maximum is taken of nothing: one zero stands for no tokens, without a look at how many there are.
        peak = torch.cat((peak.flatten(), peak.new_zeros(1))).amax(dim=0, keepdim=True)
    if scale_ub is not None:
        peak = torch.minimum(peak, scale_ub)
    scale = over_limit(peak, dtype).clamp(min=1.0 / (FP8_MAX[dtype] * _STEPS))
    return saturate(wide * scale.reciprocal(), dtype), scale.contiguous()


@register_op(batch_invariant=True)
def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return x as 8-bit floats with a scale for each group of elements next to each other in a row.

    The scale is the largest magnitude of the group, at least 1e-10, over the limit of the dtype; x is divided by it. A
    NaN or an infinity does to its group what it does to a row in `dynamic_quant_fp8`.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        group_size: elements of a group; hidden_size is a multiple of it.
        column_major_scales: lay the scales of one group of all tokens next to each other; the shape stays.
        use_ue8m0: round scales up to a power of two, which is what an 8-bit exponent can hold; still in float32.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor of x's shape and the dtype asked for, and scales [..., hidden_size / group_size] in
        float32, contiguous or, column-major, the transpose of a contiguous [groups, tokens].

    Raises:
        WrongArgument: a dtype does not fit, or the size of a row is no multiple of group_size.
    """
    check_floating("dynamic_group_quant_fp8", "x", x)
    check_group_size("dynamic_group_quant_fp8", group_size, x.shape[-1])
    check_fp8("dynamic_group_quant_fp8", dtype)
    groups = x.to(torch.float32).unflatten(-1, (x.shape[-1] // group_size, group_size))
    scales = over_limit(groups.abs().amax(dim=-1).clamp(min=_LEAST_PEAK), dtype).contiguous()
    if use_ue8m0:
        scales = to_power_of_two(scales)
    quantized = saturate((groups / scales.unsqueeze(-1)).flatten(-2), dtype)
    return quantized, column_major(scales) if column_major_scales else scales


@static_quant_fp8.register_input_generator
def static_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    per_channel: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return x [num_tokens, hidden_size], normally distributed, a scale that lets large values saturate, the dtype."""
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    scale = torch.rand(hidden_size if per_channel else 1, device=device) + 2.0
    return x, scale / FP8_MAX[quant_dtype], quant_dtype


@dynamic_quant_fp8.register_input_generator
def dynamic_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    per_token: bool = True,
    bounded: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, bool, Tensor | None, torch.dtype]:
    """Return x [num_tokens, hidden_size], normally distributed, a bound that cuts large values or None, the dtype."""
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    scale_ub = torch.rand(1, device=device) + 2.0 if bounded else None
    return x, per_token, scale_ub, quant_dtype


@dynamic_group_quant_fp8.register_input_generator
def dynamic_group_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    group_size: int | None = None,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, int, bool, bool, torch.dtype]:
    """Return x [num_tokens, hidden_size], normally distributed, and a group size: 128 if it fits, else all of a row."""
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    if group_size is None:
        group_size = hidden_size if hidden_size % 128 else 128
    return x, group_size, column_major_scales, use_ue8m0, quant_dtype


for _op in (static_quant_fp8, dynamic_quant_fp8, dynamic_group_quant_fp8):
    # Largest magnitudes, single products and quotients: each has one right answer, and scales are shared with others.
    for _dtype in (torch.float32, *FP8_MAX):
        _op.override_tolerance(_dtype, atol=0.0, rtol=0.0)
del _op, _dtype
