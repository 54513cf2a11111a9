"""Which quantised calls the kernels take, and the sentence for each that they do not.

As in `predicates`, a plain tensor is judged by the compiled module, and whatever it does not take is judged here.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from vllm_ir import Unsupported

from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.predicates import (
    NEEDS_CPU,
    NEEDS_HALVES,
    NEEDS_RESIDUAL,
    NEEDS_VALUES,
    negated,
    refusal_of_activation,
    refusal_of_norm,
    traced,
    whole,
)
from vllm_ir_provider_cpu_c.quantization import ADD_NORM, GATED, GIVEN, GROUP, NORM, PLAIN, QUANTIZED, TENSOR, TOKEN

NEEDS_QUANTIZED: Final = Unsupported("quantises to float8_e4m3fn, float8_e4m3fnuz or float8_e5m2")
NEEDS_SCALE: Final = Unsupported("needs a float32 scale of one value")
NEEDS_CHANNELS: Final = Unsupported("needs a float32 scale of one value, or of one adjacent value per element of a row")
NEEDS_ELEMENTS: Final = Unsupported("needs rows of at least one element")
NEEDS_GROUPS: Final = Unsupported("needs rows of whole groups")

Verdict = bool | Unsupported


def verdict(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    source: int,
    scaling: int,
    dtype: torch.dtype,
    group_size: int = 0,
) -> Verdict:
    """Tell whether the kernel takes a call."""
    if dtype not in QUANTIZED:
        return NEEDS_QUANTIZED
    quantized = QUANTIZED[dtype]
    if not is_dynamo_compiling() and native.takes_quant(
        x, residual, weight, scale, source, scaling, quantized, group_size
    ):
        return True
    refusal = _refusal(x, weight, scale, source, scaling, group_size)
    if refusal is None and residual is not None:
        refusal = refusal_of_activation(residual)
        if refusal is None and (residual.dtype, residual.dim(), residual.shape[-1]) != (x.dtype, x.dim(), x.shape[-1]):
            refusal = NEEDS_RESIDUAL
        # Only a plain tensor was judged by its leading sizes above; those of a graph are not to be looked at.
        if refusal is None and type(x) is Tensor and not traced():
            refusal = NEEDS_RESIDUAL
    return True if refusal is None else refusal


def _refusal(
    x: Tensor, weight: Tensor | None, scale: Tensor | None, source: int, scaling: int, group_size: int
) -> Unsupported | None:
    """Return why the kernel does not take x, a weight and a scale, or None."""
    refusal = refusal_of_norm(x, weight, None) if source in (NORM, ADD_NORM) else refusal_of_activation(x)
    if refusal is not None:
        return refusal
    size = x.shape[-1]
    if source == GATED:
        if size % 2:
            return NEEDS_HALVES
        size //= 2
    refusal = None if scale is None else _refusal_of_scale(scale, size, scaling == GIVEN and source == PLAIN)
    if refusal is not None:
        return refusal
    if scaling == GROUP and (not whole(group_size) or group_size < 1 or size % group_size):
        return NEEDS_GROUPS
    return NEEDS_ELEMENTS if scaling in (TOKEN, TENSOR) and size == 0 else None


def _refusal_of_scale(scale: Tensor, size: int, channels: bool) -> Unsupported | None:
    """Return why the kernel does not take a scale, of one value or of one for each element of a row, or None."""
    if not scale.is_cpu:
        return NEEDS_CPU
    if not _scale_fits(scale, size if channels else 1):
        return NEEDS_CHANNELS if channels else NEEDS_SCALE
    return NEEDS_VALUES if negated(scale) else None


def _scale_fits(scale: Tensor, size: int) -> bool:
    """Tell whether a scale is one value, or one for each of a number of elements."""
    if scale.dtype != torch.float32 or scale.dim() > 1:
        return False
    if scale.dim() == 0 or scale.shape[0] == 1:
        return True
    return scale.shape[0] == size and scale.stride(0) == 1


def _found(per_token: bool) -> int:
    """Return where a scale comes from that is found."""
    return TOKEN if per_token else TENSOR


def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Verdict:
    """Tell whether the kernel takes a call of static_quant_fp8."""
    return verdict(x, None, None, scale, PLAIN, GIVEN, dtype)


def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> Verdict:
    """Tell whether the kernel takes a call of dynamic_quant_fp8."""
    return verdict(x, None, None, scale_ub, PLAIN, _found(per_token), dtype)


def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Verdict:
    """Tell whether the kernel takes a call of dynamic_group_quant_fp8."""
    del column_major_scales, use_ue8m0
    return verdict(x, None, None, None, PLAIN, GROUP, dtype, group_size)


def rms_norm_static_quant_fp8(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Verdict:
    """Tell whether the kernel takes a call of rms_norm_static_quant_fp8."""
    del epsilon
    return verdict(x, None, weight, scale, NORM, GIVEN, dtype)


def fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Verdict:
    """Tell whether the kernel takes a call of fused_add_rms_norm_static_quant_fp8."""
    del epsilon
    return verdict(x, x_residual, weight, scale, ADD_NORM, GIVEN, dtype)


def rms_norm_dynamic_quant_fp8(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Verdict:
    """Tell whether the kernel takes a call of rms_norm_dynamic_quant_fp8."""
    del epsilon
    return verdict(x, None, weight, scale_ub, NORM, _found(per_token), dtype)


def fused_add_rms_norm_dynamic_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Verdict:
    """Tell whether the kernel takes a call of fused_add_rms_norm_dynamic_quant_fp8."""
    del epsilon
    return verdict(x, x_residual, weight, scale_ub, ADD_NORM, _found(per_token), dtype)


def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Verdict:
    """Tell whether the kernel takes a call of silu_and_mul_static_quant_fp8."""
    return verdict(x, None, None, scale, GATED, GIVEN, dtype)


def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> Verdict:
    """Tell whether the kernel takes a call of silu_and_mul_dynamic_quant_fp8."""
    return verdict(x, None, None, scale_ub, GATED, _found(per_token), dtype)


def silu_and_mul_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Verdict:
    """Tell whether the kernel takes a call of silu_and_mul_group_quant_fp8."""
    del column_major_scales, use_ue8m0
    return verdict(x, None, None, None, GATED, GROUP, dtype, group_size)
