"""Norms, for rows of up to 8192 elements with the roundings that a caller chooses."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter.strict import alike, apart, demand, flushed, matrix, nearest, plain, truncated, widened

ONE_PASS = 8192


def rmsnorm2d_fwd(
    input: torch.Tensor,  # noqa: A002 - AITER's name
    weight: torch.Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> Tensor:
    """Return rows over their root mean square, times the weight."""
    plain(
        "rmsnorm2d_fwd",
        input=(input, Tensor),
        weight=(weight, Tensor),
        epsilon=(epsilon, float),
        use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, int),
    )
    size = input.shape[-1]
    matrix(input, size)
    alike(input, weight)
    demand(weight.shape == (size,) and weight.is_contiguous(), f"a weight of {tuple(weight.shape)}")
    out = torch.empty_like(input)
    out.copy_(_normed(widened(input), weight, epsilon, use_model_sensitive_rmsnorm))
    return out


def rmsnorm2d_fwd_with_add(
    out: Tensor,
    input: Tensor,  # noqa: A002 - AITER's name
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    use_model_sensitive_rmsnorm: int = 0,
) -> None:
    """Write the normalised sum of rows and residuals, and the sum."""
    tensors = {"out": out, "input": input, "residual_in": residual_in, "residual_out": residual_out, "weight": weight}
    plain(
        "rmsnorm2d_fwd_with_add",
        **{name: (value, Tensor) for name, value in tensors.items()},
        epsilon=(epsilon, float),
        use_model_sensitive_rmsnorm=(use_model_sensitive_rmsnorm, int),
    )
    size = input.shape[-1]
    for each in (input, residual_in, residual_out, out):
        matrix(each, size)
        demand(each.shape == input.shape, f"shapes {tuple(each.shape)} and {tuple(input.shape)}")
    alike(input, residual_in, residual_out, out, weight)
    apart(out, input, residual_in, residual_out)
    apart(residual_out, input, residual_in)
    demand(weight.shape == (size,) and weight.is_contiguous(), f"a weight of {tuple(weight.shape)}")
    total = flushed(widened(residual_in) + widened(input))
    if use_model_sensitive_rmsnorm and size <= ONE_PASS:
        total = widened(nearest(total, input.dtype))
    residual_out.copy_(truncated(total, input.dtype))
    out.copy_(_normed(total, weight, epsilon, use_model_sensitive_rmsnorm))


def _normed(rows: Tensor, weight: Tensor, epsilon: float, sensitive: int) -> Tensor:
    """Return normalised rows, rounded to the weight's dtype as the kernels round."""
    inverse = torch.rsqrt(flushed(rows * rows).sum(-1, keepdim=True) / rows.shape[-1] + epsilon)
    if sensitive and rows.shape[-1] <= ONE_PASS:
        scaled = widened(nearest(flushed(rows * inverse), weight.dtype))
        return nearest(flushed(scaled * widened(weight)), weight.dtype)
    return truncated(flushed(flushed(rows * inverse) * widened(weight)), weight.dtype)
