"""Which calls the kernels take, and the sentence for each that they do not.

A plain tensor is judged by the compiled module, which checks before it computes anyway; whatever it does not take, and
every fake tensor, is judged here, by dtypes, trailing sizes and strides alone. Two tests hold the answers together.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from vllm_ir import Unsupported

from vllm_ir_provider_cpu_c.library import connected

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
MOST_DIMENSIONS: Final = 8

_native = connected()

NEEDS_CPU: Final = Unsupported("needs CPU tensors")
NEEDS_DTYPE: Final = Unsupported("needs float32, bfloat16 or float16")
NEEDS_DIMENSIONS: Final = Unsupported(f"needs 1 to {MOST_DIMENSIONS} dimensions")
NEEDS_ADJACENT: Final = Unsupported("needs rows whose elements are adjacent in memory (last stride 1)")
NEEDS_WEIGHT_DTYPE: Final = Unsupported("needs a weight of x's dtype or of float32")
NEEDS_WEIGHT: Final = Unsupported("needs a weight of one adjacent value per element of a row")
NEEDS_VARIANCE: Final = Unsupported("needs a variance_size from 1 to the size of a row")
NEEDS_RESIDUAL: Final = Unsupported("needs an x_residual of x's shape and dtype")
NEEDS_HALVES: Final = Unsupported("needs rows of two halves, gate and up")
NEEDS_APPROXIMATION: Final = Unsupported("knows the approximations 'none' and 'tanh'")
NEEDS_POSITIONS: Final = Unsupported("needs positions of int32 or int64")
NEEDS_HEADS: Final = Unsupported("needs rows of whole heads, and an even rotary_dim of at most head_size")
NEEDS_ONE_DTYPE: Final = Unsupported("needs query and key of one dtype")
NEEDS_CACHE: Final = Unsupported("needs a cos_sin_cache of adjacent rows of rotary_dim, of query's dtype or float32")


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rms_norm."""
    del epsilon
    if not is_dynamo_compiling() and _native.eager(x, weight) and _native.takes_norm(x, None, weight, variance_size):
        return True
    return refusal_of_norm(x, weight, variance_size) or True


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_add_rms_norm."""
    del epsilon
    plain = not is_dynamo_compiling() and _native.eager(x, x_residual, weight)
    if plain and _native.takes_norm(x, x_residual, weight, variance_size):
        return True
    refusal = refusal_of_activation(x_residual) or refusal_of_norm(x, weight, variance_size)
    if refusal is not None:
        return refusal
    if x_residual.dtype != x.dtype or x_residual.dim() != x.dim() or x_residual.shape[-1] != x.shape[-1]:
        return NEEDS_RESIDUAL
    # Leading sizes are looked at where they are known; in a graph they are not to be.
    return NEEDS_RESIDUAL if plain else True


def silu_and_mul(x: Tensor) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul."""
    if not is_dynamo_compiling() and _native.eager(x) and _native.takes_gate(x):
        return True
    return refusal_of_gate(x) or True


def gelu_and_mul(x: Tensor, approximate: str = "none") -> bool | Unsupported:
    """Tell whether the kernel takes a call of gelu_and_mul."""
    if approximate not in ("none", "tanh"):
        return NEEDS_APPROXIMATION
    return silu_and_mul(x)


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rotary_embedding."""
    del is_neox_style
    if (
        not is_dynamo_compiling()
        and _native.eager(positions, query, key, cos_sin_cache)
        and _native.takes_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache)
    ):
        return True
    return refusal_of_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache) or True


def refusal_of_activation(x: Tensor) -> Unsupported | None:
    """Return why a tensor is none that a kernel reads rows of, or None."""
    if not x.is_cpu:
        return NEEDS_CPU
    if x.dtype not in DTYPES:
        return NEEDS_DTYPE
    if not 0 < x.dim() <= MOST_DIMENSIONS:
        return NEEDS_DIMENSIONS
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return NEEDS_ADJACENT
    return None


def refusal_of_norm(x: Tensor, weight: Tensor | None, variance_size: int | None) -> Unsupported | None:
    """Return why the norms do not take an x, a weight and a variance size, or None."""
    refusal = refusal_of_activation(x)
    if refusal is not None:
        return refusal
    size = x.shape[-1]
    if weight is not None:
        if weight.dtype not in (x.dtype, torch.float32):
            return NEEDS_WEIGHT_DTYPE
        if not weight.is_cpu:
            return NEEDS_CPU
        if weight.dim() != 1 or weight.shape[0] != size or (weight.stride(0) != 1 and size > 1):
            return NEEDS_WEIGHT
    if variance_size is not None and not 0 < variance_size <= size:
        return NEEDS_VARIANCE
    return None


def refusal_of_gate(x: Tensor) -> Unsupported | None:
    """Return why the gated activations do not take an x, or None."""
    refusal = refusal_of_activation(x)
    if refusal is not None:
        return refusal
    return NEEDS_HALVES if x.shape[-1] % 2 else None


def refusal_of_rotary(
    positions: Tensor, query: Tensor, key: Tensor, head_size: int, rotary_dim: int, cos_sin_cache: Tensor
) -> Unsupported | None:
    """Return why rotary_embedding does not take its arguments, or None."""
    refusal = refusal_of_activation(query) or refusal_of_activation(key)
    if refusal is not None:
        return refusal
    if not (positions.is_cpu and cos_sin_cache.is_cpu):
        return NEEDS_CPU
    if positions.dtype not in (torch.int32, torch.int64):
        return NEEDS_POSITIONS
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size or query.shape[-1] % head_size or key.shape[-1] % head_size:
        return NEEDS_HEADS
    if key.dtype != query.dtype:
        return NEEDS_ONE_DTYPE
    if (
        cos_sin_cache.dtype not in (query.dtype, torch.float32)
        or cos_sin_cache.dim() != 2  # noqa: PLR2004 - rows and columns
        or cos_sin_cache.shape[-1] != rotary_dim
        or cos_sin_cache.stride(-1) != 1
    ):
        return NEEDS_CACHE
    return None
