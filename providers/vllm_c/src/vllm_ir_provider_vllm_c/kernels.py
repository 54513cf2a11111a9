"""The implementations: a plain call launches its kernel at once, a traced one becomes one torch op.

What tells the two apart costs less than torch's dispatcher would: Dynamo first, then modes, transforms and subclasses.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import implements

from vllm_ir_provider_vllm_c import availability, calls, predicates, quant_predicates, torch_ops
from vllm_ir_provider_vllm_c.calls import DONATED, KEPT

PROVIDER: Final = "vllm_c"
SUPPORTED: Final = availability.supported()

is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_EAGER: Final = frozenset((Tensor, torch.nn.Parameter))


def plain(*tensors: Tensor) -> bool:
    """Tell whether these are tensors with memory, and nobody watches the call."""
    return (
        not is_dynamo_compiling()
        and not torch._C._len_torch_dispatch_stack()  # noqa: SLF001 - the cheapest way to see a mode, as in vllm-ir
        and not torch._C._are_functorch_transforms_active()  # noqa: SLF001 - the same for transforms
        and all(type(each) in _EAGER for each in tensors)
    )


@implements("rms_norm", provider=PROVIDER, supported=SUPPORTED, supports_args=predicates.rms_norm, batch_invariant=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, as a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if plain(x):
        return calls.rms_norm(x, weight, epsilon, variance_size)
    traced: Tensor = torch_ops.rms_norm(x, weight, epsilon, variance_size)
    return traced


def functional_fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual, and the sum, as new contiguous tensors; no input is written."""
    if plain(x, x_residual):
        return calls.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, KEPT)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements(
    "fused_add_rms_norm",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=predicates.fused_add_rms_norm,
    inplace=True,
    functional=functional_fused_add_rms_norm,
    batch_invariant=True,
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual in x's memory, and the sum in the residual's.

    What is not contiguous, or shares memory, with the weight too, is left alone, and the results are new contiguous
    tensors.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if plain(x, x_residual):
        return calls.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, DONATED)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm.donating(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements(
    "silu_and_mul", provider=PROVIDER, supported=SUPPORTED, supports_args=predicates.silu_and_mul, batch_invariant=True
)
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
    """
    if plain(x):
        return calls.silu_and_mul(x)
    traced: Tensor = torch_ops.silu_and_mul(x)
    return traced


@implements(
    "gelu_and_mul", provider=PROVIDER, supported=SUPPORTED, supports_args=predicates.gelu_and_mul, batch_invariant=True
)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        approximate: "none" or "tanh".
    """
    if plain(x):
        return calls.gelu_and_mul(x, approximate)
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
    if plain(positions, query, key):
        return calls.rotary_embedding(*arguments, KEPT)
    traced: tuple[Tensor, Tensor] = torch_ops.rotary_embedding(*arguments)
    return traced


@implements(
    "rotary_embedding",
    provider=PROVIDER,
    supported=SUPPORTED,
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

    What is not contiguous, or shares memory, with positions or angles too, is left alone, and the results are new
    contiguous tensors.

    Args:
        positions: int32 or int64, one a token, or a single one for all rows.
        query: [..., heads * head_size] or [..., heads, head_size] of float32, bfloat16 or float16.
        key: like query; the number of heads may be another.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned.
        cos_sin_cache: [max_position, rotary_dim] of query's dtype or float32.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    A position outside the cache stops the grid, and CUDA reports it at the next synchronisation, as with native.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if plain(positions, query, key):
        return calls.rotary_embedding(*arguments, DONATED)
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
    rest = (query_weight, key_weight, epsilon, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if plain(positions, query, key):
        return calls.fused_qk_norm_rope(positions, query, key, *rest, donated=KEPT)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_qk_norm_rope(positions, query, key, *rest)
    return traced


@implements(
    "fused_qk_norm_rope",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.fused_qk_norm_rope,
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
    """Return query and key, each head normalised and then turned, in their own memory as `rotary_embedding` does.

    Args:
        positions: int32 or int64, one a token, or a single one for all rows.
        query: [..., heads * head_size] or [..., heads, head_size] of float32, bfloat16 or float16.
        key: like query; the number of heads may be another.
        query_weight: [head_size] of query's dtype or float32, or None.
        key_weight: the same for key.
        epsilon: added to the mean of squares.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned.
        cos_sin_cache: [max_position, rotary_dim] of query's dtype or float32.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    rest = (query_weight, key_weight, epsilon, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if plain(positions, query, key):
        return calls.fused_qk_norm_rope(positions, query, key, *rest, donated=DONATED)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_qk_norm_rope.donating(positions, query, key, *rest)
    return traced
