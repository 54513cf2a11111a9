"""Which calls the kernels take, and the sentence for each that they do not.

A call is judged by dtypes, trailing sizes and strides alone, the same for real tensors and fake ones.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import Unsupported

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
MOST_DIMENSIONS: Final = 4
MOST_ELEMENTS: Final = 2**30
MOST_TOKEN_DIMENSIONS: Final = 3
LEAST_INTERLEAVED: Final = 34
"""Elements of a normalised head that are turned as neighbours, at least, where there are more that are not."""

NEEDS_GPU: Final = Unsupported("needs tensors of a GPU")
NEEDS_ONE_DEVICE: Final = Unsupported("needs all tensors on one device")
NEEDS_VALUES: Final = Unsupported("needs tensors whose values lie in memory; this one is a negated view (resolve_neg)")
NEEDS_DTYPE: Final = Unsupported("needs float32, bfloat16 or float16")
NEEDS_DIMENSIONS: Final = Unsupported(f"needs 1 to {MOST_DIMENSIONS} dimensions")
NEEDS_ADJACENT: Final = Unsupported("needs rows whose elements are adjacent in memory (last stride 1)")
NEEDS_SHORT_ROWS: Final = Unsupported(f"needs rows of at most {MOST_ELEMENTS} elements")
NEEDS_WEIGHT_DTYPE: Final = Unsupported("needs a weight of x's dtype or of float32")
NEEDS_WEIGHT: Final = Unsupported("needs a weight of one adjacent value per element of a row")
NEEDS_VARIANCE: Final = Unsupported("needs a variance_size from 1 to the size of a row")
NEEDS_RESIDUAL: Final = Unsupported("needs an x_residual of x's shape and dtype")
NEEDS_HALVES: Final = Unsupported("needs rows of two halves, gate and up")
NEEDS_APPROXIMATION: Final = Unsupported("knows the approximations 'none' and 'tanh'")
NEEDS_POSITIONS: Final = Unsupported(
    f"needs positions of int32 or int64, of at most {MOST_TOKEN_DIMENSIONS} dimensions"
)
NEEDS_HEADS: Final = Unsupported("needs rows of whole heads, and an even rotary_dim of at most head_size")
NEEDS_WIDE_ROTATION: Final = Unsupported(
    f"needs a rotary_dim of head_size, or of {LEAST_INTERLEAVED} or more, where pairs are neighbours: registers spill"
)
NEEDS_ONE_DTYPE: Final = Unsupported("needs query and key of one dtype")
NEEDS_CACHE: Final = Unsupported("needs a cos_sin_cache of adjacent rows of rotary_dim, of a dtype it knows")


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rms_norm."""
    del epsilon
    return _verdict(refusal_of_norm(x, weight, variance_size))


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_add_rms_norm."""
    del epsilon
    refusal = refusal_of_norm(x, weight, variance_size)
    if refusal is None:
        refusal = refusal_of_activation(x_residual)
    if refusal is not None:
        return refusal
    if x_residual.device != x.device:
        return NEEDS_ONE_DEVICE
    if x_residual.dtype != x.dtype or x_residual.dim() != x.dim() or x_residual.shape[-1] != x.shape[-1]:
        return NEEDS_RESIDUAL
    return True


def silu_and_mul(x: Tensor) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul."""
    return _verdict(refusal_of_gate(x))


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
    return _verdict(refusal_of_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache))


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
    del epsilon
    refusal = refusal_of_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache)
    if refusal is None and not is_neox_style and rotary_dim < min(head_size, LEAST_INTERLEAVED):
        return NEEDS_WIDE_ROTATION
    for weight in (query_weight, key_weight):
        if refusal is None and weight is not None:
            refusal = refusal_of_weight(query, weight, head_size)
    return _verdict(refusal)


def _verdict(refusal: Unsupported | None) -> bool | Unsupported:
    """Return a refusal, or True for none; a refusal itself is falsy."""
    return True if refusal is None else refusal


def negated(x: Tensor) -> bool:
    """Tell whether a tensor's values are its memory's, negated; Dynamo cannot ask, and leaves it to torch."""
    return not torch.compiler.is_dynamo_compiling() and x.is_neg()


def refusal_of_activation(x: Tensor) -> Unsupported | None:
    """Return why a tensor is none that a kernel reads rows of, or None."""
    if x.dtype not in DTYPES:
        return NEEDS_DTYPE
    if not 0 < x.dim() <= MOST_DIMENSIONS:
        return NEEDS_DIMENSIONS
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        return NEEDS_ADJACENT
    if x.shape[-1] > MOST_ELEMENTS:
        return NEEDS_SHORT_ROWS
    if negated(x):
        return NEEDS_VALUES
    return None if x.is_cuda else NEEDS_GPU


def refusal_of_norm(x: Tensor, weight: Tensor | None, variance_size: int | None) -> Unsupported | None:
    """Return why the norms do not take an x, a weight and a variance size, or None."""
    refusal = refusal_of_activation(x)
    if refusal is not None:
        return refusal
    size = x.shape[-1]
    if weight is not None:
        refusal = refusal_of_weight(x, weight, size)
    if refusal is None and variance_size is not None and not (whole(variance_size) and 0 < variance_size <= size):
        return NEEDS_VARIANCE
    return refusal


def refusal_of_weight(x: Tensor, weight: Tensor, size: int) -> Unsupported | None:
    """Return why no row of x, or head of it, of a size is multiplied by a weight, or None."""
    if weight.dtype not in (x.dtype, torch.float32):
        return NEEDS_WEIGHT_DTYPE
    if weight.device != x.device:
        return NEEDS_ONE_DEVICE
    if weight.dim() != 1 or weight.shape[0] != size or (weight.stride(0) != 1 and size > 1):
        return NEEDS_WEIGHT
    return NEEDS_VALUES if negated(weight) else None


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
    for x in (query, key):
        refusal = refusal_of_activation(x)
        if refusal is not None:
            return refusal
    wanted = (
        (all(x.device == query.device for x in (key, positions, cos_sin_cache)), NEEDS_ONE_DEVICE),
        (_numbers_tokens(positions), NEEDS_POSITIONS),
        (key.dtype == query.dtype, NEEDS_ONE_DTYPE),
        (_whole_heads(query, key, head_size, rotary_dim), NEEDS_HEADS),
        (_fits(cos_sin_cache, rotary_dim), NEEDS_CACHE),
        (not (negated(cos_sin_cache) or negated(positions)), NEEDS_VALUES),
    )
    return next((reason for fits, reason in wanted if not fits), None)


def _numbers_tokens(positions: Tensor) -> bool:
    """Tell whether a kernel reads positions."""
    return positions.dtype in (torch.int32, torch.int64) and positions.dim() <= MOST_TOKEN_DIMENSIONS


def whole(value: object) -> bool:
    """Tell whether a value is a whole number; True, which Python takes for 1, is none."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _whole_heads(query: Tensor, key: Tensor, head_size: int, rotary_dim: int) -> bool:
    """Tell whether rows are whole heads, and a rotation fits into a head."""
    if not (whole(head_size) and whole(rotary_dim)):
        return False
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        return False
    return query.shape[-1] % head_size == 0 and key.shape[-1] % head_size == 0


def _fits(cache: Tensor, rotary_dim: int) -> bool:
    """Tell whether a kernel reads cosines and sines from a cache."""
    rows_and_columns = 2
    return (
        cache.dtype in DTYPES
        and cache.dim() == rows_and_columns
        and cache.shape[-1] == rotary_dim
        and cache.stride(-1) == 1
    )
