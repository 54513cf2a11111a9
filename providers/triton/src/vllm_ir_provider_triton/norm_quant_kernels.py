"""The functions behind the ops that normalise and quantise, and behind fused_qk_norm_rope; declared in `declared`."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_ir_provider_triton import calls, quant_calls, torch_ops
from vllm_ir_provider_triton.calls import DONATED, KEPT
from vllm_ir_provider_triton.kernels import plain


def rms_norm_static_quant_fp8(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Return normalised rows over a scale, quantised, as a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        weight: [hidden_size] of x's dtype or float32, or None.
        scale: float32, one value.
        epsilon: added to the mean of squares.
        dtype: what is written.
    """
    if plain(x, scale):
        return quant_calls.norm_static_quant(x, weight, scale, epsilon, dtype)
    traced: Tensor = torch_ops.rms_norm_static_quant_fp8(x, weight, scale, epsilon, dtype)
    return traced


def rms_norm_dynamic_quant_fp8(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return normalised rows, each over its own scale, quantised, and the scales, as new contiguous tensors.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        per_token: True.
        scale_ub: float32, one value: what the largest magnitude of a row counts for at most.
        dtype: what is written.
    """
    arguments = (x, weight, epsilon, per_token, scale_ub, dtype)
    if plain(x):
        return quant_calls.norm_token_quant(*arguments)
    traced: tuple[Tensor, Tensor] = torch_ops.rms_norm_dynamic_quant_fp8(*arguments)
    return traced


def functional_fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return normalised sums over a scale, quantised, and the sums, as new contiguous tensors; no input is written."""
    arguments = (x, x_residual, weight, scale, epsilon, dtype)
    if plain(x, x_residual, scale):
        return quant_calls.fused_static_quant(*arguments, KEPT)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm_static_quant_fp8(*arguments)
    return traced


def fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return normalised sums over a scale, quantised, and the sums, in the residual's memory.

    A residual that is not contiguous, or shares memory, is left alone, and the sums are a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        scale: float32, one value.
        epsilon: added to the mean of squares.
        dtype: what is written.
    """
    arguments = (x, x_residual, weight, scale, epsilon, dtype)
    if plain(x, x_residual, scale):
        return quant_calls.fused_static_quant(*arguments, DONATED)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm_static_quant_fp8.donating(*arguments)
    return traced


def functional_fused_add_rms_norm_dynamic_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised sums, each row over its own scale, the scales and the sums, as new contiguous tensors."""
    arguments = (x, x_residual, weight, epsilon, per_token, scale_ub, dtype)
    if plain(x, x_residual):
        return quant_calls.fused_token_quant(*arguments, KEPT)
    traced: tuple[Tensor, Tensor, Tensor] = torch_ops.fused_add_rms_norm_dynamic_quant_fp8(*arguments)
    return traced


def fused_add_rms_norm_dynamic_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return normalised sums, each row over its own scale, the scales, and the sums in the residual's memory.

    A residual that is not contiguous, or shares memory, is left alone, and the sums are a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        per_token: True.
        scale_ub: float32, one value: what the largest magnitude of a row counts for at most.
        dtype: what is written.
    """
    arguments = (x, x_residual, weight, epsilon, per_token, scale_ub, dtype)
    if plain(x, x_residual):
        return quant_calls.fused_token_quant(*arguments, DONATED)
    traced: tuple[Tensor, Tensor, Tensor] = torch_ops.fused_add_rms_norm_dynamic_quant_fp8.donating(*arguments)
    return traced


def functional_fused_qk_norm_rope(
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
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head normalised and turned, as new contiguous tensors; no input is written."""
    weights = (query_weight, key_weight, epsilon)
    arguments = (positions, query, key, *weights, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if plain(positions, query, key):
        return calls.fused_qk_norm_rope(*arguments, KEPT)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_qk_norm_rope(*arguments)
    return traced


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
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head normalised and turned, in their own memory where it is contiguous and apart.

    Args:
        positions: int32 or int64, one a token.
        query: [..., heads * head_size] or [..., heads, head_size] of float32, bfloat16 or float16.
        key: like query; the number of heads may be another.
        query_weight: [head_size] of query's dtype or float32, or None.
        key_weight: likewise.
        epsilon: added to the mean of squares.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned.
        cos_sin_cache: [max_position, rotary_dim] of float32, bfloat16 or float16.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    A position outside the cache gives NaN, and nothing is read there; native stops the program.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    weights = (query_weight, key_weight, epsilon)
    arguments = (positions, query, key, *weights, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if plain(positions, query, key):
        return calls.fused_qk_norm_rope(*arguments, DONATED)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_qk_norm_rope.donating(*arguments)
    return traced
