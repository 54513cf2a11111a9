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

from vllm_ir_provider_cpu_c.library import native

DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)
MOST_DIMENSIONS: Final = 8

NEEDS_CPU: Final = Unsupported("needs CPU tensors")
NEEDS_VALUES: Final = Unsupported("needs tensors whose values lie in memory; this one is a negated view (resolve_neg)")
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


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | Unsupported:
    """Tell whether the kernel takes a call of rms_norm."""
    del epsilon
    if not is_dynamo_compiling() and native.takes_norm(x, None, weight, variance_size):
        return True
    return _verdict(refusal_of_norm(x, weight, variance_size))


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool | Unsupported:
    """Tell whether the kernel takes a call of fused_add_rms_norm."""
    del epsilon
    if not is_dynamo_compiling() and native.takes_norm(x, x_residual, weight, variance_size):
        return True
    refusal = refusal_of_norm(x, weight, variance_size)
    if refusal is None:
        refusal = refusal_of_activation(x_residual)
    if refusal is not None:
        return refusal
    if x_residual.dtype != x.dtype or x_residual.dim() != x.dim() or x_residual.shape[-1] != x.shape[-1]:
        return NEEDS_RESIDUAL
    # Only a plain tensor was judged by its leading sizes above; those of a graph are not to be looked at.
    return NEEDS_RESIDUAL if type(x) is Tensor and not traced() else True


def silu_and_mul(x: Tensor) -> bool | Unsupported:
    """Tell whether the kernel takes a call of silu_and_mul."""
    if not is_dynamo_compiling() and native.takes_gate(x):
        return True
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
    if not is_dynamo_compiling() and native.takes_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache):
        return True
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
    del is_neox_style
    if not is_dynamo_compiling() and native.takes_norm_rope(
        positions, query, key, query_weight, key_weight, epsilon, head_size, rotary_dim, cos_sin_cache
    ):
        return True
    refusal = refusal_of_rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache)
    for weight in (query_weight, key_weight):
        if refusal is None:  # a refusal is falsy
            refusal = refusal_of_weight(weight, query.dtype, head_size)
    return _verdict(refusal)


def _verdict(refusal: Unsupported | None) -> bool | Unsupported:
    """Return a refusal, or True for none; a refusal itself is falsy."""
    return True if refusal is None else refusal


def traced() -> bool:
    """Tell whether somebody traces, so that a plain tensor may stand for others."""
    return is_dynamo_compiling() or bool(torch._C._len_torch_dispatch_stack())  # noqa: SLF001 - as in vllm-ir


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
    return NEEDS_VALUES if negated(x) else None


def negated(x: Tensor) -> bool:
    """Tell whether a tensor's values are its memory's, negated; Dynamo cannot ask, and leaves it to torch."""
    return not is_dynamo_compiling() and x.is_neg()


def refusal_of_norm(x: Tensor, weight: Tensor | None, variance_size: int | None) -> Unsupported | None:
    """Return why the norms do not take an x, a weight and a variance size, or None."""
    refusal = refusal_of_activation(x)
    if refusal is not None:
        return refusal
    size = x.shape[-1]
    refusal = refusal_of_weight(weight, x.dtype, size)
    if refusal is not None:
        return refusal
    if variance_size is not None and not (whole(variance_size) and 0 < variance_size <= size):
        return NEEDS_VARIANCE
    return None


def refusal_of_weight(weight: Tensor | None, dtype: torch.dtype, size: int) -> Unsupported | None:
    """Return why a norm does not take a weight, or None."""
    if weight is None:
        return None
    if weight.dtype not in (dtype, torch.float32):
        return NEEDS_WEIGHT_DTYPE
    if not weight.is_cpu:
        return NEEDS_CPU
    if negated(weight):
        return NEEDS_VALUES
    fits = weight.dim() == 1 and weight.shape[0] == size and (weight.stride(0) == 1 or size <= 1)
    return None if fits else NEEDS_WEIGHT


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
    if not (positions.is_cpu and cos_sin_cache.is_cpu):
        return NEEDS_CPU
    wanted = (
        (positions.dtype in (torch.int32, torch.int64), NEEDS_POSITIONS),
        (key.dtype == query.dtype, NEEDS_ONE_DTYPE),
        (_whole_heads(query, key, head_size, rotary_dim), NEEDS_HEADS),
        (_fits(cos_sin_cache, query.dtype, rotary_dim), NEEDS_CACHE),
        (not negated(cos_sin_cache), NEEDS_VALUES),
    )
    return next((reason for fits, reason in wanted if not fits), None)


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


def _fits(cache: Tensor, dtype: torch.dtype, rotary_dim: int) -> bool:
    """Tell whether a kernel reads cosines and sines from a cache."""
    rows_and_columns = 2
    return (
        cache.dtype in (dtype, torch.float32)
        and cache.dim() == rows_and_columns
        and cache.shape[-1] == rotary_dim
        and cache.stride(-1) == 1
    )
