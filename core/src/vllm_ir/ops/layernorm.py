"""What root-mean-square normalisation means, alone and after a residual addition.

The rounding is part of the meaning: float32 throughout, the normalised value rounded to the weight's dtype before the
multiply, the product to the dtype of x. The variance is of the float32 values, never of rounded ones. A float64 input
is computed in float64, since nobody passes one in order to lose half of it, and gradients are checked in float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.ops.checks import check_floating, check_same, check_variance_size, check_weight

if TYPE_CHECKING:
    from vllm_ir.composition import Parts


def widen(x: Tensor) -> Tensor:
    """Return x in float32, or in float64 if that is what it is."""
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def normalize(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None, dtype: torch.dtype
) -> Tensor:
    """Return rows over their root mean square, times the weight, contiguous in `dtype`."""
    measured = x if variance_size is None else x[..., :variance_size]
    variance = measured.pow(2).mean(dim=-1, keepdim=True)
    normalized = x * torch.rsqrt(variance + epsilon)
    if weight is not None:
        normalized = normalized.to(weight.dtype) * weight
    return normalized.to(dtype).contiguous()


@register_op
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return x over the root mean square of its rows, times the weight.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        weight: [hidden_size] of any floating-point dtype, or None for no multiply.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.

    Returns:
        a new contiguous tensor of x's shape and dtype.

    Raises:
        WrongArgument: a dtype, a row size or variance_size does not fit.
    """
    check_floating("rms_norm", "x", x)
    check_weight("rms_norm", weight, x.shape[-1])
    check_variance_size("rms_norm", variance_size, x.shape[-1])
    return normalize(widen(x), weight, epsilon, variance_size, x.dtype)


def _fused_add_rms_norm(
    parts: Parts,
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what `fused_add_rms_norm` does over `rms_norm` of the sum.

    The sum goes in before it is rounded, in float32, so the variance is the same. The norm comes back in float32, and
    the cast to x's dtype behind it rounds as native's one cast does: the product with a weight of 16 or 32 bits is a
    float32 value already, and from the float64 of such a weight torch casts to narrower dtypes by way of float32.
    """
    check_floating("fused_add_rms_norm", "x", x)
    check_same("fused_add_rms_norm", x, x_residual)
    check_weight("fused_add_rms_norm", weight, x.shape[-1])
    check_variance_size("fused_add_rms_norm", variance_size, x.shape[-1])
    total = widen(x) + widen(x_residual)
    return parts.rms_norm(total, weight, epsilon, variance_size).to(x.dtype), total.to(x.dtype).contiguous()


@register_op(allow_inplace=True, parts=(rms_norm,), expansion=_fused_add_rms_norm)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual, and the sum itself.

    The sum is in float32 (float64 for float64 inputs); the residual returned is that sum rounded to x's dtype, and the
    variance is of the sum before it was rounded.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of any floating-point dtype, or None for no multiply.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.

    Returns:
        two contiguous tensors of x's shape and dtype: the normalised sum, and the sum.

    Raises:
        WrongArgument: a dtype, a shape or variance_size does not fit.
    """
    check_floating("fused_add_rms_norm", "x", x)
    check_same("fused_add_rms_norm", x, x_residual)
    check_weight("fused_add_rms_norm", weight, x.shape[-1])
    check_variance_size("fused_add_rms_norm", variance_size, x.shape[-1])
    total = widen(x) + widen(x_residual)
    return normalize(total, weight, epsilon, variance_size, x.dtype), total.to(x.dtype).contiguous()


@rms_norm.register_input_generator
def rms_norm_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, float]:
    """Return x [num_tokens, hidden_size] and a weight, both normally distributed, and epsilon."""
    x = torch.randn(num_tokens, hidden_size, dtype=dtype, device=device)
    return x, torch.randn(hidden_size, dtype=dtype, device=device), epsilon


@fused_add_rms_norm.register_input_generator
def fused_add_rms_norm_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return x and a residual [num_tokens, hidden_size] and a weight, all normally distributed, and epsilon."""
    x, x_residual = (torch.randn(num_tokens, hidden_size, dtype=dtype, device=device) for _ in range(2))
    return x, x_residual, torch.randn(hidden_size, dtype=dtype, device=device), epsilon


for _op in (rms_norm, fused_add_rms_norm):
    # A float32 sum of 16384 squares in another order is off by some 1e-6 of its value, which moves a whole row.
    _op.override_tolerance(torch.float32, atol=1e-5, rtol=5e-6)
    # A float16 result sits between two neighbours wherever the float32 value moved across the middle: one unit.
    _op.override_tolerance(torch.float16, atol=1e-5, rtol=2e-3)
del _op
