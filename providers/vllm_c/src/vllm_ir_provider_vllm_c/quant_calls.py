"""One function for each way of quantising: make the outputs, plan the launches, run them.

What may be called at all is left to `quant_predicates`. Outputs are new and contiguous, but for scales that are asked
for with the tokens next to each other, and for a donated residual, which follows the rule of `calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vllm_ir_provider_vllm_c import loading, quantization
from vllm_ir_provider_vllm_c.calls import apart
from vllm_ir_provider_vllm_c.geometry import dtype_name
from vllm_ir_provider_vllm_c.quantization import FOUND, GIVEN, MEASURED, Scaling

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from vllm_ir_provider_vllm_c.geometry import Launch


def quantized(x: Tensor, dtype: torch.dtype, *, gated: bool = False) -> Tensor:
    """Return memory for rows of x, or for half of each, in an 8-bit dtype."""
    return x.new_empty((*x.shape[:-1], quantization.row_size(x, gated=gated)), dtype=dtype)


def row_scales(x: Tensor, *, per_token: bool) -> Tensor:
    """Return memory for a scale of each row, or of all."""
    return x.new_empty((*x.shape[:-1], 1) if per_token else (1,), dtype=torch.float32)


def group_scales(x: Tensor, group_size: int, *, gated: bool, column_major: bool) -> Tensor:
    """Return memory for a scale of each group; column-major: those of one group of all tokens next to each other."""
    sizes = (*x.shape[:-1], quantization.row_size(x, gated=gated) // group_size)
    if not column_major or x.dim() == 1:
        return x.new_empty(sizes, dtype=torch.float32)
    tokens = 1
    for size in sizes[:-1]:
        tokens = tokens * size
    return x.new_empty((sizes[-1], tokens), dtype=torch.float32).t().view(sizes)


def static(x: Tensor, scale: Tensor, dtype: torch.dtype, *, gated: bool = False) -> Tensor:
    """Return rows, or gated rows, over a given scale."""
    out = quantized(x, dtype, gated=gated)
    loading.run(quantization.static(x, Scaling(dtype, scale), out, gated=gated), x.device)
    return out


def dynamic(
    x: Tensor, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype, *, gated: bool = False
) -> tuple[Tensor, Tensor]:
    """Return rows, or gated rows, over scales that are found, and these."""
    out, scale = quantized(x, dtype, gated=gated), row_scales(x, per_token=per_token)
    if per_token:
        loading.run(quantization.rows(x, Scaling(dtype, scale, FOUND, scale_ub), out, gated=gated), x.device)
        return out, scale

    def plan(scaling: Scaling) -> Launch:
        """Plan what measures, and what quantises."""
        if scaling.kind == MEASURED:
            return quantization.rows(x, scaling, out, gated=gated)
        return quantization.static(x, scaling, out, gated=gated)

    over_all(x, out, Scaling(dtype, scale, FOUND, scale_ub), plan)
    return out, scale


def over_all(x: Tensor, out: Tensor, scaling: Scaling, plan: Callable[[Scaling], Launch]) -> None:
    """Quantise with one scale for all rows: measure each, find the scale, then compute the rows again with it.

    Args:
        x: what is read.
        out: what is written.
        scaling: where the scale is kept, and its bound.
        plan: from a `Scaling` to the launch that measures, and to the one that quantises.
    """
    magnitudes = out.new_empty((out.numel() // out.shape[-1],), dtype=torch.float32)
    loading.run(plan(Scaling(scaling.dtype, magnitudes, MEASURED)), x.device)
    loading.run(quantization.tensor_scale(dtype_name(x.dtype), magnitudes, scaling), x.device)
    loading.run(plan(scaling._replace(kind=GIVEN, bound=None)), x.device)


def groups(
    x: Tensor, group_size: int, column_major: bool, power_of_two: bool, dtype: torch.dtype, *, gated: bool = False
) -> tuple[Tensor, Tensor]:
    """Return rows, or gated rows, over a scale for each of their groups, and these."""
    out = quantized(x, dtype, gated=gated)
    scales = group_scales(x, group_size, gated=gated, column_major=column_major)
    launch = quantization.groups(
        x,
        Scaling(dtype, scales, FOUND),
        out,
        group_size,
        gated=gated,
        power_of_two=power_of_two,
        column_major=column_major,
    )
    loading.run(launch, x.device)
    return out, scales


def norm_static(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return normalised rows over a given scale."""
    out = quantized(x, dtype)
    loading.run(quantization.norm(x, None, weight, epsilon, Scaling(dtype, scale), out, None), x.device)
    return out


def norm_dynamic(
    x: Tensor, weight: Tensor | None, epsilon: float, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return normalised rows over scales that are found, and these."""
    out, scale = quantized(x, dtype), row_scales(x, per_token=per_token)
    scaling = Scaling(dtype, scale, FOUND, scale_ub)
    if per_token:
        loading.run(quantization.norm(x, None, weight, epsilon, scaling, out, None), x.device)
    else:
        over_all(x, out, scaling, lambda each: quantization.norm(x, None, weight, epsilon, each, out, None))
    return out, scale


def fused_norm_static(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype,
    donated: bool,
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum over a given scale, and the sum, in the memory of x_residual if it is donated."""
    out, total = quantized(x, dtype), kept_sum(x, x_residual, donated, weight, scale)
    loading.run(quantization.norm(x, x_residual, weight, epsilon, Scaling(dtype, scale), out, total), x.device)
    return out, total


def fused_norm_dynamic(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool,
    scale_ub: Tensor | None,
    dtype: torch.dtype,
    donated: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum over scales that are found, these, and the sum, in x_residual's if it is donated."""
    out, scale = quantized(x, dtype), row_scales(x, per_token=per_token)
    total = kept_sum(x, x_residual, donated, weight, scale_ub)
    scaling = Scaling(dtype, scale, FOUND, scale_ub)

    def plan(each: Scaling) -> Launch:
        """Plan one reading of the rows."""
        return quantization.norm(x, x_residual, weight, epsilon, each, out, total)

    if per_token:
        loading.run(plan(scaling), x.device)
    else:
        over_all(x, out, scaling, plan)
    return out, scale, total


def kept_sum(x: Tensor, x_residual: Tensor, donated: bool, *others: Tensor | None) -> Tensor:
    """Return where a sum goes: to a donated residual that shares no memory with what is read, or to new memory."""
    if donated and x_residual.is_contiguous() and apart(x_residual, x, *others):
        return x_residual
    return x_residual.new_empty(x_residual.shape)
