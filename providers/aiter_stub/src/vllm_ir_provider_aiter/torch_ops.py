"""The calls as torch ops: graphs keep one opaque node each, and the fakes tell its results without AITER.

Which device they run on is not said here: the manifest gives this provider tensors of ROCm alone. The op with a
trailing underscore writes its activations and returns nothing, since torch wants no op to return its inputs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from vllm_ir_provider_aiter import calls
from vllm_ir_provider_aiter.calls import DONATED, KEPT
from vllm_ir_provider_aiter.predicates import dense

NAMESPACE: Final = "vllm_ir_aiter"

_ROTARY: Final = "SymInt head_size, SymInt rotary_dim, Tensor cos_sin_cache, bool is_neox_style"


@torch.library.custom_op(
    f"{NAMESPACE}::rms_norm", mutates_args=(), schema="(Tensor x, Tensor weight, float epsilon) -> Tensor"
)
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows of x over their root mean square, times the weight."""
    return calls.rms_norm(x, weight, epsilon)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return what the result is like."""
    del weight, epsilon
    return x.new_empty(x.shape)


@torch.library.custom_op(
    f"{NAMESPACE}::fused_add_rms_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor x_residual, Tensor weight, float epsilon) -> (Tensor, Tensor)",
)
def fused_add_rms_norm(x: Tensor, x_residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the normalised sum and the sum."""
    return calls.fused_add_rms_norm(x, x_residual, weight, epsilon)


@fused_add_rms_norm.register_fake
def _(x: Tensor, x_residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del x_residual, weight, epsilon
    return x.new_empty(x.shape), x.new_empty(x.shape)


@torch.library.custom_op(f"{NAMESPACE}::silu_and_mul", mutates_args=(), schema="(Tensor x) -> Tensor")
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return calls.silu_and_mul(x)


@silu_and_mul.register_fake
def _(x: Tensor) -> Tensor:
    """Return what the result is like."""
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@torch.library.custom_op(
    f"{NAMESPACE}::rotary_embedding",
    mutates_args=(),
    schema=f"(Tensor positions, Tensor query, Tensor key, {_ROTARY}) -> (Tensor, Tensor)",
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
    """Return query and key with each head turned."""
    return calls.rotary_embedding(positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style, KEPT)


@rotary_embedding.register_fake
def _(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del positions, head_size, rotary_dim, cos_sin_cache, is_neox_style
    return query.new_empty(query.shape), key.new_empty(key.shape)


@torch.library.custom_op(
    f"{NAMESPACE}::rotary_embedding_",
    mutates_args=("query", "key"),
    schema=f"(Tensor positions, Tensor(a!) query, Tensor(b!) key, {_ROTARY}) -> ()",
)
def rotary_embedding_(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> None:
    """Turn each head of query and key where they lie."""
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    for given, result in zip((query, key), calls.rotary_embedding(*arguments, DONATED), strict=True):
        if result is not given:  # they share memory
            given.copy_(result)


def donating_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, turned in place where they are contiguous; new tensors otherwise."""
    arguments = (positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)
    if not (dense(query) and dense(key)):
        functional: tuple[Tensor, Tensor] = rotary_embedding(*arguments)
        return functional
    rotary_embedding_(*arguments)
    return query, key
