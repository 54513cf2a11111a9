"""What norms mean that end in 8-bit floating point.

Each meaning is written over its parts: the values are rounded to x's dtype, as the unquantised op returns them, and
then quantised, so a fused kernel changes no bit of what the parts give one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.ops.checks import (
    check_bound,
    check_floating,
    check_fp8,
    check_same,
    check_scale,
    check_weight,
)
from vllm_ir.ops.layernorm import fused_add_rms_norm, rms_norm
from vllm_ir.ops.quantization import FP8_MAX, dynamic_quant_fp8, static_quant_fp8

if TYPE_CHECKING:
    from vllm_ir.composition import Parts


def _check_norm(
    op: str, x: Tensor, weight: Tensor | None, dtype: torch.dtype, x_residual: Tensor | None = None
) -> None:
    """Raise unless a row can be normalised, and then quantised to a dtype."""
    check_floating(op, "x", x)
    if x_residual is not None:
        check_same(op, x, x_residual)
    check_weight(op, weight, x.shape[-1])
    check_fp8(op, dtype)


@register_op(parts=(rms_norm, static_quant_fp8))
def rms_norm_static_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, over a given scale as 8-bit floats.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        weight: [hidden_size] of any floating-point dtype, or None for no multiply.
        scale: float32, one value (of shape [] or [1]).
        epsilon: added to the mean of squares.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor of x's shape and the dtype asked for.

    Raises:
        WrongArgument: a dtype or a shape does not fit.
    """
    _check_norm("rms_norm_static_quant_fp8", x, weight, dtype)
    check_scale("rms_norm_static_quant_fp8", "scale", scale)
    quantized: Tensor = parts.static_quant_fp8(parts.rms_norm(x, weight, epsilon), scale, dtype)
    return quantized


@register_op(parts=(fused_add_rms_norm, static_quant_fp8), allow_inplace=True)
def fused_add_rms_norm_static_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual over a given scale as 8-bit floats, and the sum itself.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of any floating-point dtype, or None for no multiply.
        scale: float32, one value (of shape [] or [1]).
        epsilon: added to the mean of squares.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        two contiguous tensors of x's shape: the values in the dtype asked for, and the sum in x's dtype.

    Raises:
        WrongArgument: a dtype or a shape does not fit.
    """
    _check_norm("fused_add_rms_norm_static_quant_fp8", x, weight, dtype, x_residual)
    check_scale("fused_add_rms_norm_static_quant_fp8", "scale", scale)
    normalized, residual = parts.donated.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return parts.static_quant_fp8(normalized, scale, dtype), residual


@register_op(parts=(rms_norm, dynamic_quant_fp8))
def rms_norm_dynamic_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return x over the root mean square of its rows, times the weight, as 8-bit floats with their scale.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        weight: [hidden_size] of any floating-point dtype, or None for no multiply.
        epsilon: added to the mean of squares.
        per_token: one scale for each row; otherwise one for the whole tensor.
        scale_ub: float32, one value (of shape [] or [1]): what the largest magnitude counts for at most.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor of x's shape and the dtype asked for, and the scale as of `dynamic_quant_fp8`.

    Raises:
        WrongArgument: a dtype or a shape does not fit, or a row has no elements.
    """
    _check_norm("rms_norm_dynamic_quant_fp8", x, weight, dtype)
    check_bound("rms_norm_dynamic_quant_fp8", x.shape[-1], scale_ub)
    quantized, scale = parts.dynamic_quant_fp8(parts.rms_norm(x, weight, epsilon), per_token, scale_ub, dtype)
    return quantized, scale


@register_op(parts=(fused_add_rms_norm, dynamic_quant_fp8), allow_inplace=True)
def fused_add_rms_norm_dynamic_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum of x and a residual as 8-bit floats, their scale, and the sum itself.

    Args:
        x: [..., hidden_size] of any floating-point dtype and strides; zero tokens are legal.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of any floating-point dtype, or None for no multiply.
        epsilon: added to the mean of squares.
        per_token: one scale for each row; otherwise one for the whole tensor.
        scale_ub: float32, one value (of shape [] or [1]): what the largest magnitude counts for at most.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a contiguous tensor of x's shape and the dtype asked for, the scale as of `dynamic_quant_fp8`, and the sum,
        contiguous and of x's shape and dtype.

    Raises:
        WrongArgument: a dtype or a shape does not fit, or a row has no elements.
    """
    _check_norm("fused_add_rms_norm_dynamic_quant_fp8", x, weight, dtype, x_residual)
    check_bound("fused_add_rms_norm_dynamic_quant_fp8", x.shape[-1], scale_ub)
    normalized, residual = parts.donated.fused_add_rms_norm(x, x_residual, weight, epsilon)
    quantized, scale = parts.dynamic_quant_fp8(normalized, per_token, scale_ub, dtype)
    return quantized, scale, residual


@rms_norm_static_quant_fp8.register_input_generator
def rms_norm_static_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor, float, torch.dtype]:
    """Return x [num_tokens, hidden_size], a weight, a scale that lets large values saturate, epsilon and the dtype."""
    x, weight, _ = rms_norm.generate_inputs(num_tokens=num_tokens, hidden_size=hidden_size, dtype=dtype, device=device)
    return x, weight, (torch.rand(1, device=device) + 2.0) / FP8_MAX[quant_dtype], epsilon, quant_dtype


@fused_add_rms_norm_static_quant_fp8.register_input_generator
def fused_add_rms_norm_static_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor, Tensor, float, torch.dtype]:
    """Return x and a residual [num_tokens, hidden_size], a weight, a scale that makes large values saturate, more."""
    given = {"hidden_size": hidden_size, "dtype": dtype, "device": device}
    x, x_residual, weight, _ = fused_add_rms_norm.generate_inputs(num_tokens=num_tokens, **given)
    return x, x_residual, weight, (torch.rand(1, device=device) + 2.0) / FP8_MAX[quant_dtype], epsilon, quant_dtype


@rms_norm_dynamic_quant_fp8.register_input_generator
def rms_norm_dynamic_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    per_token: bool = True,
    bounded: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, float, bool, Tensor | None, torch.dtype]:
    """Return x [num_tokens, hidden_size], a weight, epsilon, a bound that cuts large values or None, and the dtype."""
    x, weight, _ = rms_norm.generate_inputs(num_tokens=num_tokens, hidden_size=hidden_size, dtype=dtype, device=device)
    scale_ub = torch.rand(1, device=device) + 2.0 if bounded else None
    return x, weight, epsilon, per_token, scale_ub, quant_dtype


@fused_add_rms_norm_dynamic_quant_fp8.register_input_generator
def fused_add_rms_norm_dynamic_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    per_token: bool = True,
    bounded: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor, float, bool, Tensor | None, torch.dtype]:
    """Return x and a residual [num_tokens, hidden_size], a weight, epsilon, a bound or None, and the dtype."""
    given = {"hidden_size": hidden_size, "dtype": dtype, "device": device}
    x, x_residual, weight, _ = fused_add_rms_norm.generate_inputs(num_tokens=num_tokens, **given)
    scale_ub = torch.rand(1, device=device) + 2.0 if bounded else None
    return x, x_residual, weight, epsilon, per_token, scale_ub, quant_dtype


for _op in (
    rms_norm_static_quant_fp8,
    fused_add_rms_norm_static_quant_fp8,
    rms_norm_dynamic_quant_fp8,
    fused_add_rms_norm_dynamic_quant_fp8,
):
    # The norm may move a row by a few units, and its scale with it; scales are as small as the values are over 57344,
    # so only a relative bound says anything of them.
    _op.override_tolerance(torch.float32, atol=0.0, rtol=5e-6)
del _op
