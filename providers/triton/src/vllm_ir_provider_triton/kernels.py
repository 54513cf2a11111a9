"""The implementations: a plain call launches its kernel at once, a traced one becomes one torch op.

What tells the two apart costs less than torch's dispatcher would: Dynamo first, then modes, transforms and subclasses.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from vllm_ir import implements

from vllm_ir_provider_triton import calls, predicates, torch_ops
from vllm_ir_provider_triton.calls import DONATED, FREE, KEPT

PROVIDER: Final = "triton"

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


@implements("rms_norm", provider=PROVIDER, supports_args=predicates.rms_norm)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, as a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if plain(x):
        return calls.rms_norm(x, weight, epsilon, variance_size, FREE)
    traced: Tensor = torch_ops.rms_norm(x, weight, epsilon, variance_size)
    return traced


def functional_fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual, and the sum, as new contiguous tensors; no input is written."""
    if plain(x, x_residual):
        return calls.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, KEPT, FREE)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements(
    "fused_add_rms_norm",
    provider=PROVIDER,
    supports_args=predicates.fused_add_rms_norm,
    inplace=True,
    functional=functional_fused_add_rms_norm,
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
    if plain(x, x_residual):
        return calls.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, DONATED, FREE)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm.donating(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements("silu_and_mul", provider=PROVIDER, supports_args=predicates.silu_and_mul)
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
    """
    if plain(x):
        return calls.silu_and_mul(x, FREE)
    traced: Tensor = torch_ops.silu_and_mul(x)
    return traced


@implements("gelu_and_mul", provider=PROVIDER, supports_args=predicates.gelu_and_mul)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        approximate: "none" or "tanh".
    """
    if plain(x):
        return calls.gelu_and_mul(x, approximate, FREE)
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
    supports_args=predicates.rotary_embedding,
    inplace=True,
    functional=functional_rotary_embedding,
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
        cos_sin_cache: [max_position, rotary_dim] of float32, bfloat16 or float16.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    A position outside the cache gives NaN, and nothing is read there; native stops the program.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if plain(positions, query, key):
        return calls.rotary_embedding(*arguments, DONATED)
    traced: tuple[Tensor, Tensor] = torch_ops.rotary_embedding.donating(*arguments)
    return traced
