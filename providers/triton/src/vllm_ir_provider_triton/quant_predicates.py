"""Which calls the quantising kernels take, and the sentence for each that they do not; as in `predicates`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import Unsupported

from vllm_ir_provider_triton import predicates
from vllm_ir_provider_triton.configuration import LARGEST_BLOCK
from vllm_ir_provider_triton.predicates import NEEDS_ONE_DEVICE, NEEDS_RESIDUAL, NEEDS_VALUES, negated

Wanted = tuple[tuple[bool, Unsupported], ...]
"""What is wanted of arguments, each with the reason why a call is refused without it."""

FORMATS: Final = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)

NEEDS_FORMAT: Final = Unsupported("needs float8_e4m3fn, float8_e4m3fnuz or float8_e5m2 to quantise to")
NEEDS_SCALE: Final = Unsupported("needs a scale of float32: one value, or one adjacent value per element of a row")
NEEDS_ONE_SCALE: Final = Unsupported("needs a scale of float32, one value")
NEEDS_BOUND: Final = Unsupported("needs a scale_ub of float32, one value, or None")
NEEDS_TOKENS: Final = Unsupported("needs per_token=True: one scale for all rows would have them normalised twice")
NEEDS_NO_BATCH: Final = Unsupported("needs per_token=True: one scale for all rows depends on the batch")
NEEDS_ELEMENTS: Final = Unsupported("needs rows with elements")
NEEDS_GROUPS: Final = Unsupported("needs rows of whole groups")
NEEDS_BLOCK: Final = Unsupported(f"needs rows of at most {LARGEST_BLOCK} elements, which stay in registers")

E4M3FN: Final = torch.float8_e4m3fn


def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = E4M3FN) -> bool | Unsupported:
    """Tell whether the kernel takes a call of static_quant_fp8."""
    return _judged(predicates.refusal_of_activation(x), dtype, _scales(scale, x, width(x)))


def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of dynamic_quant_fp8."""
    del per_token
    return _judged(predicates.refusal_of_activation(x), dtype, _tokens(x, scale_ub))


def fixed_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of dynamic_quant_fp8 whose rows have the same bits in every batch."""
    return dynamic_quant_fp8(x, per_token, scale_ub, dtype) if per_token else NEEDS_NO_BATCH


def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of dynamic_group_quant_fp8."""
    del column_major_scales, use_ue8m0
    return _judged(predicates.refusal_of_activation(x), dtype, _groups(width(x), group_size))


def rms_norm_static_quant_fp8(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rms_norm_static_quant_fp8."""
    del epsilon
    refusal = predicates.refusal_of_norm(x, weight, None)
    return _judged(refusal, dtype, ((width(x) <= LARGEST_BLOCK, NEEDS_BLOCK),), _scales(scale, x))


def fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_add_rms_norm_static_quant_fp8."""
    verdict = rms_norm_static_quant_fp8(x, weight, scale, epsilon, dtype)
    return (
        _judged(predicates.refusal_of_activation(x_residual), dtype, _residual(x, x_residual)) if verdict else verdict
    )


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
    refusal = predicates.refusal_of_norm(x, weight, None)
    wanted = ((width(x) <= LARGEST_BLOCK, NEEDS_BLOCK), (per_token, NEEDS_TOKENS))
    return _judged(refusal, dtype, wanted, _tokens(x, scale_ub))


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
    verdict = rms_norm_dynamic_quant_fp8(x, weight, epsilon, per_token, scale_ub, dtype)
    return (
        _judged(predicates.refusal_of_activation(x_residual), dtype, _residual(x, x_residual)) if verdict else verdict
    )


def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = E4M3FN) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul_static_quant_fp8."""
    return _judged(predicates.refusal_of_gate(x), dtype, _scales(scale, x))


def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul_dynamic_quant_fp8."""
    del per_token
    return _judged(predicates.refusal_of_gate(x), dtype, _tokens(x, scale_ub))


def fixed_silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = E4M3FN
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of the op whose rows have the same bits in every batch."""
    return silu_and_mul_dynamic_quant_fp8(x, per_token, scale_ub, dtype) if per_token else NEEDS_NO_BATCH


def silu_and_mul_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = E4M3FN,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul_group_quant_fp8."""
    del column_major_scales, use_ue8m0
    refusal = predicates.refusal_of_gate(x)
    return _judged(refusal, dtype, _groups(width(x) // 2, group_size))


def width(x: Tensor) -> int:
    """Return the size of a row; a scalar, which is refused, has none."""
    return x.shape[-1] if x.dim() else 0


def _judged(refusal: Unsupported | None, dtype: torch.dtype, *wanted: Wanted) -> bool | Unsupported:
    """Return the first reason against a call, or True."""
    if refusal is not None:
        return refusal
    if dtype not in FORMATS:
        return NEEDS_FORMAT
    return next((reason for each in wanted for fits, reason in each if not fits), True)


def _one_value(scale: Tensor) -> bool:
    """Tell whether a tensor is one float32 value."""
    return scale.dtype == torch.float32 and tuple(scale.shape) in ((), (1,))


def _scales(scale: Tensor, x: Tensor, size: int | None = None) -> Wanted:
    """Return what is wanted of a scale; with the size of a row, there may be one for each of its elements."""
    each = size is not None and scale.dim() == 1 and scale.shape[0] == size and scale.dtype == torch.float32
    return (
        (_one_value(scale) or (each and scale.stride(0) == 1), NEEDS_ONE_SCALE if size is None else NEEDS_SCALE),
        (scale.device == x.device, NEEDS_ONE_DEVICE),
        (not negated(scale), NEEDS_VALUES),
    )


def _tokens(x: Tensor, bound: Tensor | None) -> Wanted:
    """Return what is wanted of rows whose largest magnitude makes a scale, and of its bound."""
    wanted = ((width(x) > 0, NEEDS_ELEMENTS),)
    if bound is None:
        return wanted
    return (
        *wanted,
        (_one_value(bound), NEEDS_BOUND),
        (bound.device == x.device, NEEDS_ONE_DEVICE),
        (not negated(bound), NEEDS_VALUES),
    )


def _groups(size: int, group_size: int) -> Wanted:
    """Return what is wanted of rows that are cut into groups."""
    if not predicates.whole(group_size):
        return ((False, NEEDS_GROUPS),)
    return ((group_size > 0 and size > 0 and size % max(group_size, 1) == 0, NEEDS_GROUPS),)


def _residual(x: Tensor, residual: Tensor) -> Wanted:
    """Return what is wanted of a residual."""
    alike = residual.dtype == x.dtype and residual.dim() == x.dim() and width(residual) == width(x)
    return ((residual.device == x.device, NEEDS_ONE_DEVICE), (alike, NEEDS_RESIDUAL))
