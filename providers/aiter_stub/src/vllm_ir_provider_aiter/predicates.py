"""Which calls AITER's kernels take, and the sentence for each that they do not.

A call is judged by dtypes, trailing sizes and strides alone, the same for real tensors and fake ones. Where AITER would
read or write past a row, or leave its result unwritten without a word, the refusal stands in for the check it lacks.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import Unsupported

DTYPES: Final = (torch.bfloat16, torch.float16)
LONGEST_ROW: Final = 8192
"""Above it AITER norms rows in two passes, which do not round the normalised value."""

_LANES: Final = 64
_MOST_AT_ONCE: Final = 8

NEEDS_VALUES: Final = Unsupported("needs tensors whose values lie in memory; this one is a negated view (resolve_neg)")
NEEDS_DTYPE: Final = Unsupported("needs bfloat16 or float16")
NEEDS_ONE_DEVICE: Final = Unsupported("needs all tensors on one device")
NEEDS_ROWS: Final = Unsupported(f"needs rows of 1 to {LONGEST_ROW} elements, beyond which AITER rounds otherwise")
NEEDS_FLAT: Final = Unsupported(
    "needs adjacent elements and evenly spaced rows, which AITER takes as a matrix; flattening these would copy them"
)
NEEDS_WEIGHT: Final = Unsupported("needs a weight; AITER has no kernel without one")
NEEDS_WEIGHT_DTYPE: Final = Unsupported("needs a weight of x's dtype")
NEEDS_WEIGHT_SHAPE: Final = Unsupported("needs a weight of one adjacent value per element of a row")
NEEDS_WHOLE_ROWS: Final = Unsupported("needs the variance of whole rows; AITER knows no variance_size")
NEEDS_RESIDUAL: Final = Unsupported("needs an x_residual of x's shape and dtype")
NEEDS_HALVES: Final = Unsupported("needs rows of two halves, gate and up")
NEEDS_DENSE: Final = Unsupported("needs contiguous rows one after the other; AITER knows no strides here")
NEEDS_WHOLE_LOADS: Final = Unsupported(
    "needs halves of a multiple of the 1, 2, 4 or 8 elements that AITER loads at once; it would write beyond the row"
)
NEEDS_ONE_DTYPE: Final = Unsupported("needs query and key of one dtype")
NEEDS_POSITIONS: Final = Unsupported("needs positions of int32 or int64")
NEEDS_HEADS: Final = Unsupported("needs rows of whole heads, and an even rotary_dim of at most head_size")
NEEDS_CACHE: Final = Unsupported("needs a floating-point cos_sin_cache of rows of rotary_dim")


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | Unsupported:
    """Tell whether AITER takes a call of rms_norm."""
    del epsilon
    return _verdict(refusal_of_norm(x, weight, variance_size))


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | Unsupported:
    """Tell whether AITER takes a call of fused_add_rms_norm."""
    del epsilon
    refusal = refusal_of_norm(x, weight, variance_size)
    if refusal is not None:
        return refusal
    if x_residual.device != x.device:
        return NEEDS_ONE_DEVICE
    if x_residual.dtype != x.dtype or x_residual.dim() != x.dim() or x_residual.shape[-1] != x.shape[-1]:
        return NEEDS_RESIDUAL
    if negated(x_residual):
        return NEEDS_VALUES
    return True if flat(x_residual) else NEEDS_FLAT


def silu_and_mul(x: Tensor) -> bool | Unsupported:
    """Tell whether AITER takes a call of silu_and_mul."""
    if x.dtype not in DTYPES:
        return NEEDS_DTYPE
    if not x.dim() or not x.shape[-1] or x.shape[-1] % 2:
        return NEEDS_HALVES
    if not dense(x):
        return NEEDS_DENSE
    if negated(x):
        return NEEDS_VALUES
    return True if x.shape[-1] // 2 % at_once(x.shape[-1] // 2) == 0 else NEEDS_WHOLE_LOADS


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> bool | Unsupported:
    """Tell whether AITER takes a call of rotary_embedding; query and key may lie anywhere, their results are dense."""
    del is_neox_style
    wanted = (
        (query.dtype in DTYPES, NEEDS_DTYPE),
        (key.dtype == query.dtype, NEEDS_ONE_DTYPE),
        (all(each.device == query.device for each in (key, positions, cos_sin_cache)), NEEDS_ONE_DEVICE),
        (positions.dtype in (torch.int32, torch.int64), NEEDS_POSITIONS),
        (_whole_heads(query, key, head_size, rotary_dim), NEEDS_HEADS),
        (_fits(cos_sin_cache, rotary_dim), NEEDS_CACHE),
        (not (negated(query) or negated(key)), NEEDS_VALUES),
    )
    return _verdict(next((reason for fits, reason in wanted if not fits), None))


def _verdict(refusal: Unsupported | None) -> bool | Unsupported:
    """Return a refusal, or True for none; a refusal itself is falsy."""
    return True if refusal is None else refusal


def refusal_of_norm(x: Tensor, weight: Tensor | None, variance_size: int | None) -> Unsupported | None:
    """Return why the norms do not take an x, a weight and a variance size, or None."""
    if x.dtype not in DTYPES:
        return NEEDS_DTYPE
    if variance_size is not None:
        return NEEDS_WHOLE_ROWS
    if not x.dim() or not 0 < x.shape[-1] <= LONGEST_ROW:
        return NEEDS_ROWS
    refusal = refusal_of_weight(x, weight)
    if refusal is not None:
        return refusal
    if negated(x):
        return NEEDS_VALUES
    return None if flat(x) else NEEDS_FLAT


def refusal_of_weight(x: Tensor, weight: Tensor | None) -> Unsupported | None:
    """Return why the norms do not take a weight for an x, or None."""
    if weight is None:
        return NEEDS_WEIGHT
    if weight.dtype != x.dtype:
        return NEEDS_WEIGHT_DTYPE
    if weight.device != x.device:
        return NEEDS_ONE_DEVICE
    if weight.dim() != 1 or weight.shape[0] != x.shape[-1] or (weight.stride(0) != 1 and weight.shape[0] > 1):
        return NEEDS_WEIGHT_SHAPE
    return NEEDS_VALUES if negated(weight) else None


def negated(x: Tensor) -> bool:
    """Tell whether a tensor's values are its memory's, negated; Dynamo cannot ask, and leaves it to torch."""
    return not torch.compiler.is_dynamo_compiling() and x.is_neg()


def flat(x: Tensor) -> bool:
    """Tell whether a tensor of rows is a matrix without copying it, judged without its leading size."""
    strides, sizes = x.stride(), x.shape
    if strides[-1] != 1 and sizes[-1] != 1:
        return False
    return all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(x.dim() - 2))


def dense(x: Tensor) -> bool:
    """Tell whether a tensor is contiguous, judged without its leading size; False where that would decide."""
    strides, sizes = x.stride(), x.shape
    return strides[-1] == 1 and all(strides[i] == strides[i + 1] * sizes[i + 1] for i in range(x.dim() - 1))


def at_once(size: int) -> int:
    """Return how many elements of a half AITER's gates load at once: the next power of two of size / 64, at most 8."""
    wanted = size // _LANES
    return min(_MOST_AT_ONCE, 1 << max(0, wanted - 1).bit_length())


def whole(value: object) -> bool:
    """Tell whether a value is a whole number; True, which Python takes for 1, is none."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _whole_heads(query: Tensor, key: Tensor, head_size: int, rotary_dim: int) -> bool:
    """Tell whether rows are whole heads, and a rotation fits into a head."""
    if not (whole(head_size) and whole(rotary_dim)):
        return False
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size or not query.dim() or not key.dim():
        return False
    return all(each.shape[-1] > 0 and each.shape[-1] % head_size == 0 for each in (query, key))


def _fits(cache: Tensor, rotary_dim: int) -> bool:
    """Tell whether cosines and sines can be taken from a cache."""
    rows_and_columns = 2
    return cache.is_floating_point() and cache.dim() == rows_and_columns and cache.shape[-1] == rotary_dim
