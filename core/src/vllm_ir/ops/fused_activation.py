"""What gated activations mean that end in 8-bit floating point.

Each meaning is written over its parts: the product is rounded to x's dtype, as the unquantised op returns it, and then
quantised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.ops.activation import silu_and_mul
from vllm_ir.ops.checks import check_bound, check_floating, check_fp8, check_group_size, check_packed, check_scale
from vllm_ir.ops.quantization import FP8_MAX, dynamic_group_quant_fp8, dynamic_quant_fp8, static_quant_fp8

if TYPE_CHECKING:
    from vllm_ir.composition import Parts


def _check_gate(op: str, x: Tensor, dtype: torch.dtype) -> None:
    """Raise unless a row holds gate and up, and can be quantised to a dtype."""
    check_floating(op, "x", x)
    check_packed(op, x)
    check_fp8(op, dtype)


@register_op(parts=(silu_and_mul, static_quant_fp8))
def silu_and_mul_static_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    scale: Tensor,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up one after the other, over a given scale as 8-bit floats.

    Args:
        x: [..., 2 * size] of any floating-point dtype and strides; zero tokens are legal.
        scale: float32, one value (of shape [] or [1]).
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor [..., size] of the dtype asked for.

    Raises:
        WrongArgument: a dtype or a shape does not fit.
    """
    _check_gate("silu_and_mul_static_quant_fp8", x, dtype)
    check_scale("silu_and_mul_static_quant_fp8", "scale", scale)
    quantized: Tensor = parts.static_quant_fp8(parts.silu_and_mul(x), scale, dtype)
    return quantized


@register_op(parts=(silu_and_mul, dynamic_quant_fp8))
def silu_and_mul_dynamic_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up of rows that hold gate and up one after the other, as 8-bit floats with their scale.

    Args:
        x: [..., 2 * size] of any floating-point dtype and strides; zero tokens are legal.
        per_token: one scale for each row; otherwise one for the whole tensor.
        scale_ub: float32, one value (of shape [] or [1]): what the largest magnitude counts for at most.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor [..., size] of the dtype asked for, and the scale as of `dynamic_quant_fp8`.

    Raises:
        WrongArgument: a dtype or a shape does not fit, or a row has no elements.
    """
    _check_gate("silu_and_mul_dynamic_quant_fp8", x, dtype)
    check_bound("silu_and_mul_dynamic_quant_fp8", x.shape[-1], scale_ub)
    quantized, scale = parts.dynamic_quant_fp8(parts.silu_and_mul(x), per_token, scale_ub, dtype)
    return quantized, scale


@register_op(parts=(silu_and_mul, dynamic_group_quant_fp8))
def silu_and_mul_group_quant_fp8(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up of rows that hold gate and up, as 8-bit floats with a scale for each group of a row.

    Args:
        x: [..., 2 * size] of any floating-point dtype and strides; zero tokens are legal.
        group_size: elements of a group; size is a multiple of it.
        column_major_scales: lay the scales of one group of all tokens next to each other; the shape stays.
        use_ue8m0: round scales up to a power of two, still in float32.
        dtype: torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2.

    Returns:
        a new contiguous tensor [..., size] of the dtype asked for, and float32 scales [..., size / group_size].

    Raises:
        WrongArgument: a dtype, a shape or the size of a group does not fit.
    """
    _check_gate("silu_and_mul_group_quant_fp8", x, dtype)
    check_group_size("silu_and_mul_group_quant_fp8", group_size, x.shape[-1] // 2)
    quantized, scales = parts.dynamic_group_quant_fp8(
        parts.silu_and_mul(x), group_size, column_major_scales, use_ue8m0, dtype
    )
    return quantized, scales


@silu_and_mul_static_quant_fp8.register_input_generator
def silu_and_mul_static_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, torch.dtype]:
    """Return x [num_tokens, 2 * hidden_size], a scale that lets large values saturate, and the dtype."""
    x = torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device)
    return x, (torch.rand(1, device=device) + 1.0) / FP8_MAX[quant_dtype], quant_dtype


@silu_and_mul_dynamic_quant_fp8.register_input_generator
def silu_and_mul_dynamic_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    per_token: bool = True,
    bounded: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, bool, Tensor | None, torch.dtype]:
    """Return x [num_tokens, 2 * hidden_size], a bound that cuts large values or None, and the dtype."""
    x = torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device)
    return x, per_token, torch.rand(1, device=device) + 1.0 if bounded else None, quant_dtype


@silu_and_mul_group_quant_fp8.register_input_generator
def silu_and_mul_group_quant_fp8_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    group_size: int | None = None,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    quant_dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, int, bool, bool, torch.dtype]:
    """Return x [num_tokens, 2 * hidden_size], and a group size: 128 if it fits, else all of a row."""
    x = torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device)
    if group_size is None:
        group_size = hidden_size if hidden_size % 128 else 128
    return x, group_size, column_major_scales, use_ue8m0, quant_dtype


for _op in (silu_and_mul_static_quant_fp8, silu_and_mul_dynamic_quant_fp8, silu_and_mul_group_quant_fp8):
    # Scales are as small as the values are over 57344: only a relative bound says anything of them.
    _op.override_tolerance(torch.float32, atol=0.0, rtol=2e-6)
del _op
