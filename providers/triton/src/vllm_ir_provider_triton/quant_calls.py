"""One function a quantising program: make the outputs, plan the launch, run it. `quant_predicates` has who may call.

A donated residual is written where it lies if it is contiguous and shares no memory with what is read beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from vllm_ir_provider_triton import loading, quantization
from vllm_ir_provider_triton.calls import apart
from vllm_ir_provider_triton.geometry import dtype_name
from vllm_ir_provider_triton.variants import LIMITS

if TYPE_CHECKING:
    from torch import Tensor


GATED: Final = True
PLAIN: Final = False
LEAST_STEPS: Final = 512
"""A scale of rows or of a tensor is at least one over so many times the limit of its format, here and in `fp8`."""


def sizes(x: Tensor, *, gated: bool) -> tuple[int, ...]:
    """Return the sizes of what is quantised: those of x, or of gate times up."""
    return (*x.shape[:-1], x.shape[-1] // 2) if gated else tuple(x.shape)


def group_scales(x: Tensor, groups: int, column_major: bool) -> Tensor:
    """Return room for the scales of x's rows, which holds one group of all rows next to each other if column-major."""
    lead = x.shape[:-1]
    if not column_major or not lead:
        return x.new_empty((*lead, groups), dtype=torch.float32)
    rows = 1
    for size in lead:
        rows = rows * size
    laid = x.new_empty((groups, rows), dtype=torch.float32).t()
    # A view would choose the stride of one row anew, and native's is that of the transpose.
    return laid if len(lead) == 1 else laid.view((*lead, groups))


def static_quant(x: Tensor, scale: Tensor, dtype: torch.dtype, gated: bool) -> Tensor:
    """Return rows, or silu(gate) * up of them, over a scale."""
    out = x.new_empty(sizes(x, gated=gated), dtype=dtype)
    loading.run(quantization.scaled(x, out, scale, loading.architecture(x.device), gated=gated), x.device)
    return out


def dynamic_quant(
    x: Tensor, per_token: bool, bound: Tensor | None, dtype: torch.dtype, gated: bool
) -> tuple[Tensor, Tensor]:
    """Return rows, or silu(gate) * up of them, each over its own scale or all over one, and the scales."""
    return (token_quant if per_token else tensor_quant)(x, bound, dtype, gated)


def token_quant(x: Tensor, bound: Tensor | None, dtype: torch.dtype, gated: bool) -> tuple[Tensor, Tensor]:
    """Return rows, or silu(gate) * up of them, each over its own scale, and the scales."""
    out = x.new_empty(sizes(x, gated=gated), dtype=dtype)
    scale = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    arch = loading.architecture(x.device)
    loading.run(quantization.grouped(x, out, scale, bound, None, arch, gated=gated), x.device)
    return out, scale


def tensor_quant(x: Tensor, bound: Tensor | None, dtype: torch.dtype, gated: bool) -> tuple[Tensor, Tensor]:
    """Return rows, or silu(gate) * up of them, over one scale, and the scale: two launches, the first for the largest.

    No tokens have the least scale, and no launch.
    """
    out = x.new_empty(sizes(x, gated=gated), dtype=dtype)
    if not out.numel():
        return out, x.new_full((1,), 1.0 / (LIMITS[dtype_name(dtype)] * LEAST_STEPS), dtype=torch.float32)
    largest, scale = x.new_zeros(1, dtype=torch.int32), x.new_empty(1, dtype=torch.float32)
    arch = loading.architecture(x.device)
    loading.run(quantization.peak(x, largest, arch, gated=gated), x.device)
    launch = quantization.scaled(x, out, largest, arch, gated=gated, scale_out=scale, bound=bound)
    loading.run(launch, x.device)
    return out, scale


def group_quant(
    x: Tensor, group_size: int, column_major: bool, power: bool, dtype: torch.dtype, gated: bool
) -> tuple[Tensor, Tensor]:
    """Return rows, or silu(gate) * up of them, each group over its own scale, and the scales."""
    out = x.new_empty(sizes(x, gated=gated), dtype=dtype)
    scales = group_scales(x, out.shape[-1] // group_size, column_major)
    launch = quantization.grouped(
        x,
        out,
        scales,
        None,
        group_size,
        loading.architecture(x.device),
        gated=gated,
        power=power,
        column_major=column_major,
    )
    loading.run(launch, x.device)
    return out, scales


def norm_static_quant(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return normalised rows over a scale."""
    out = x.new_empty(x.shape, dtype=dtype)
    arch = loading.architecture(x.device)
    loading.run(quantization.norm(x, None, weight, epsilon, out, None, scale, None, arch, dynamic=False), x.device)
    return out


def norm_token_quant(
    x: Tensor, weight: Tensor | None, epsilon: float, per_token: bool, bound: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return normalised rows, each over its own scale, and the scales; `per_token` is True."""
    del per_token
    out, scale = x.new_empty(x.shape, dtype=dtype), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    arch = loading.architecture(x.device)
    loading.run(quantization.norm(x, None, weight, epsilon, out, None, scale, bound, arch, dynamic=True), x.device)
    return out, scale


def fused_static_quant(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype,
    donated: bool,
) -> tuple[Tensor, Tensor]:
    """Return normalised sums over a scale, and the sums, in the residual's memory if it is donated and apart."""
    out, total = x.new_empty(x.shape, dtype=dtype), sums(residual, donated, x, weight, scale)
    arch = loading.architecture(x.device)
    launch = quantization.norm(x, residual, weight, epsilon, out, total, scale, None, arch, dynamic=False)
    loading.run(launch, x.device)
    return out, total


def fused_token_quant(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool,
    bound: Tensor | None,
    dtype: torch.dtype,
    donated: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised sums, each row over its own scale, the scales, and the sums, as `fused_static_quant` does."""
    del per_token
    out, scale = x.new_empty(x.shape, dtype=dtype), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    total = sums(residual, donated, x, weight, bound)
    arch = loading.architecture(x.device)
    launch = quantization.norm(x, residual, weight, epsilon, out, total, scale, bound, arch, dynamic=True)
    loading.run(launch, x.device)
    return out, scale, total


def sums(residual: Tensor, donated: bool, x: Tensor, *others: Tensor | None) -> Tensor:
    """Return where sums go: to the donated residual, or to a new contiguous tensor.

    Args:
        residual: what may be written.
        donated: whether it may.
        x: what is added to it.
        others: what is read beside them, by programs that may come after those that write.
    """
    if donated and residual.is_contiguous() and apart(residual, x, *others):
        return residual
    return residual.new_empty(residual.shape)
