"""Which calls of the ops that end in 8-bit floating point, or that normalise heads, the kernels take; see `predicates`.

A scale is judged by its shape: one of a single value has no sizes but 1.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import Unsupported
from vllm_ir.environment import Environment

from vllm_ir_provider_vllm_c.predicates import (
    NEEDS_ONE_DEVICE,
    NEEDS_PLAIN,
    negated,
    refusal_of_activation,
    refusal_of_gate,
    refusal_of_norm,
    refusal_of_residual,
    refusal_of_rotary,
    refusal_of_weight,
    verdict,
    whole,
)

DTYPES: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
E4M3FN: Final = torch.float8_e4m3fn

INVARIANT: Final = Environment.read().batch_invariant
"""Whether a row's bits may depend on no other row in this process."""

NEEDS_FP8: Final = Unsupported("needs dtype float8_e4m3fn or float8_e5m2; NVIDIA's GPUs have no float8_e4m3fnuz")
NEEDS_SCALE: Final = Unsupported("needs a float32 scale of one value")
NEEDS_SCALES: Final = Unsupported("needs a float32 scale of one value, or of one adjacent value per element of a row")
NEEDS_BOUND: Final = Unsupported("needs a float32 scale_ub of one value")
NEEDS_TOKENS: Final = Unsupported(
    "needs per_token=True under VLLM_BATCH_INVARIANT=1: one scale for all rows is of the whole batch"
)
NEEDS_ELEMENTS: Final = Unsupported("needs rows of at least one element")
NEEDS_GROUPS: Final = Unsupported("needs rows of whole groups")


def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = E4M3FN) -> bool | Unsupported:
    """Tell whether the kernel takes a call of static_quant_fp8."""
    refusal = refusal_of_activation(x)
    if refusal is None and scale.dim() == 1 and scale.shape[0] != 1:
        fits = scale.shape[0] == x.shape[-1] and scale.stride(0) == 1
        refusal = NEEDS_SCALES if not fits or scale.dtype != torch.float32 else refusal_of_place(x, scale)
    elif refusal is None:
        refusal = refusal_of_value(x, scale, NEEDS_SCALES)
    return verdict(refusal_of_dtype(dtype) if refusal is None else refusal)


def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of dynamic_quant_fp8."""
    refusal = refusal_of_activation(x)
    return verdict(
        refusal_of_dynamic(x, x.shape[-1], scale_ub, dtype, per_token=per_token) if refusal is None else refusal
    )


def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of dynamic_group_quant_fp8."""
    del column_major_scales, use_ue8m0
    refusal = refusal_of_activation(x)
    return verdict(refusal_of_groups(x.shape[-1], group_size, dtype) if refusal is None else refusal)


def rms_norm_static_quant_fp8(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rms_norm_static_quant_fp8."""
    del epsilon
    refusal = refusal_of_norm(x, weight, None)
    return verdict(refusal_of_static(x, scale, dtype) if refusal is None else refusal)


def rms_norm_dynamic_quant_fp8(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rms_norm_dynamic_quant_fp8."""
    del epsilon
    refusal = refusal_of_norm(x, weight, None)
    return verdict(
        refusal_of_dynamic(x, x.shape[-1], scale_ub, dtype, per_token=per_token) if refusal is None else refusal
    )


def fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_add_rms_norm_static_quant_fp8."""
    taken = rms_norm_static_quant_fp8(x, weight, scale, epsilon, dtype)
    return verdict(refusal_of_residual(x, x_residual)) if taken is True else taken


def fused_add_rms_norm_dynamic_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_add_rms_norm_dynamic_quant_fp8."""
    taken = rms_norm_dynamic_quant_fp8(x, weight, epsilon, per_token, scale_ub, dtype)
    return verdict(refusal_of_residual(x, x_residual)) if taken is True else taken


def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = E4M3FN) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul_static_quant_fp8."""
    refusal = refusal_of_gate(x)
    return verdict(refusal_of_static(x, scale, dtype) if refusal is None else refusal)


def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul_dynamic_quant_fp8."""
    refusal = refusal_of_gate(x)
    return verdict(
        refusal_of_dynamic(x, x.shape[-1] // 2, scale_ub, dtype, per_token=per_token) if refusal is None else refusal
    )


def silu_and_mul_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul_group_quant_fp8."""
    del column_major_scales, use_ue8m0
    refusal = refusal_of_gate(x)
    return verdict(refusal_of_groups(x.shape[-1] // 2, group_size, dtype) if refusal is None else refusal)


def fused_qk_norm_rope(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_qk_norm_rope."""
    del epsilon, is_neox_style
    refusal = refusal_of_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache)
    if refusal is None:
        refusal = refusal_of_weight(query, query_weight, head_size)
    return verdict(refusal_of_weight(key, key_weight, head_size) if refusal is None else refusal)


def refusal_of_dtype(dtype: torch.dtype) -> Unsupported | None:
    """Return why nothing is quantised to a dtype, or None."""
    return None if dtype in DTYPES else NEEDS_FP8


def refusal_of_static(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Unsupported | None:
    """Return why an x is not quantised with the one scale that is given, or None."""
    refusal = refusal_of_value(x, scale, NEEDS_SCALE)
    return refusal_of_dtype(dtype) if refusal is None else refusal


def refusal_of_dynamic(
    x: Tensor, size: int, scale_ub: Tensor | None, dtype: torch.dtype, *, per_token: bool
) -> Unsupported | None:
    """Return why rows of a size are not quantised with scales that are found, or None."""
    if size == 0:
        return NEEDS_ELEMENTS
    if INVARIANT and not per_token:
        return NEEDS_TOKENS
    refusal = None if scale_ub is None else refusal_of_value(x, scale_ub, NEEDS_BOUND)
    return refusal_of_dtype(dtype) if refusal is None else refusal


def refusal_of_groups(size: int, group_size: int, dtype: torch.dtype) -> Unsupported | None:
    """Return why rows of a size are not quantised in groups, or None."""
    if not whole(group_size) or group_size < 1 or size % group_size:
        return NEEDS_GROUPS
    return refusal_of_dtype(dtype)


def refusal_of_value(x: Tensor, value: Tensor, reason: Unsupported) -> Unsupported | None:
    """Return why a tensor is not the one float32 that goes with an x, or None."""
    if value.dtype != torch.float32 or value.dim() > 1 or (value.dim() == 1 and value.shape[0] != 1):
        return reason
    return refusal_of_place(x, value)


def refusal_of_place(x: Tensor, other: Tensor) -> Unsupported | None:
    """Return why a kernel that runs beside an x cannot read another tensor, or None."""
    if other.device != x.device:
        return NEEDS_ONE_DEVICE
    return NEEDS_PLAIN if negated(other) else None
