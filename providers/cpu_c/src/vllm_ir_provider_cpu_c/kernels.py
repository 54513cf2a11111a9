"""The implementations: a plain call goes straight into the compiled module, a traced one becomes one torch op.

What a call costs beside the kernel is the test for which of the two it is. Dynamo is asked first, because it cannot
look into a compiled module; the module then sees fake tensors, subclasses, dispatch modes and transforms, and declines.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import implements

from vllm_ir_provider_cpu_c import predicates, torch_ops
from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.torch_ops import GELU, GELU_TANH, SILU

PROVIDER: Final = "cpu_c"
DONATED: Final = True
KEPT: Final = False

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


@implements("rms_norm", provider=PROVIDER, supports_args=predicates.rms_norm, batch_invariant=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, as a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if not is_dynamo_compiling():
        done = native.try_rms_norm(x, weight, epsilon, variance_size)
        if done is not None:
            return done
    traced: Tensor = torch_ops.rms_norm(x, weight, epsilon, variance_size)
    return traced


def functional_fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual, and the sum, as new contiguous tensors; no input is written."""
    if not is_dynamo_compiling():
        done = native.try_fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, KEPT)
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements(
    "fused_add_rms_norm",
    provider=PROVIDER,
    supports_args=predicates.fused_add_rms_norm,
    inplace=True,
    functional=functional_fused_add_rms_norm,
    batch_invariant=True,
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual in x's memory, and the sum in the residual's.

    What is not contiguous, or shares memory, is left alone, and the results are new contiguous tensors.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if not is_dynamo_compiling():
        done = native.try_fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, DONATED)
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm.donating(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements("silu_and_mul", provider=PROVIDER, supports_args=predicates.silu_and_mul, batch_invariant=True)
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
    """
    if not is_dynamo_compiling():
        done = native.try_gate(x, SILU)
        if done is not None:
            return done
    traced: Tensor = torch_ops.silu_and_mul(x)
    return traced


@implements("gelu_and_mul", provider=PROVIDER, supports_args=predicates.gelu_and_mul, batch_invariant=True)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        approximate: "none" or "tanh".
    """
    if not is_dynamo_compiling():
        done = native.try_gate(x, GELU_TANH if approximate == "tanh" else GELU)
        if done is not None:
            return done
    traced: Tensor = torch_ops.gelu_and_mul(x, approximate)
    return traced


def functional_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head turned by its token's angles, as new contiguous tensors; no input is written."""
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if not is_dynamo_compiling():
        done = native.try_rotary_embedding(*arguments, KEPT)
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.rotary_embedding(*arguments)
    return traced


@implements(
    "rotary_embedding",
    provider=PROVIDER,
    supports_args=predicates.rotary_embedding,
    inplace=True,
    functional=functional_rotary_embedding,
    batch_invariant=True,
)
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head turned by its token's angles, in their own memory where it is contiguous.

    Args:
        positions: int32 or int64, one a token.
        query: [..., heads * head_size] or [..., heads, head_size] of float32, bfloat16 or float16.
        key: like query; the number of heads may be another.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned.
        cos_sin_cache: [max_position, rotary_dim] of query's dtype or float32.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    Raises:
        IndexError: a position lies outside the cache; nothing has been written.
    """
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if not is_dynamo_compiling():
        done = native.try_rotary_embedding(*arguments, DONATED)
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.rotary_embedding.donating(*arguments)
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
    arguments = (
        positions,
        query,
        key,
        query_weight,
        key_weight,
        epsilon,
        head_size,
        rotary_dim,
        cos_sin_cache,
        is_neox_style,
    )
    if not is_dynamo_compiling():
        done = native.try_fused_qk_norm_rope(*arguments, KEPT)
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.fused_qk_norm_rope(*arguments)
    return traced


@implements(
    "fused_qk_norm_rope",
    provider=PROVIDER,
    supports_args=predicates.fused_qk_norm_rope,
    inplace=True,
    functional=functional_fused_qk_norm_rope,
    batch_invariant=True,
)
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
    """Return query and key, each head normalised and turned, in their own memory where it is contiguous.

    Args:
        positions: int32 or int64, one a token.
        query: [..., heads * head_size] or [..., heads, head_size] of float32, bfloat16 or float16.
        key: like query; the number of heads may be another.
        query_weight: [head_size] of query's dtype or float32, or None.
        key_weight: the same for key.
        epsilon: added to the mean of squares of a head.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned.
        cos_sin_cache: [max_position, rotary_dim] of query's dtype or float32.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    Raises:
        IndexError: a position lies outside the cache; nothing has been written.
    """
    arguments = (
        positions,
        query,
        key,
        query_weight,
        key_weight,
        epsilon,
        head_size,
        rotary_dim,
        cos_sin_cache,
        is_neox_style,
    )
    if not is_dynamo_compiling():
        done = native.try_fused_qk_norm_rope(*arguments, DONATED)
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.fused_qk_norm_rope.donating(*arguments)
    return traced
