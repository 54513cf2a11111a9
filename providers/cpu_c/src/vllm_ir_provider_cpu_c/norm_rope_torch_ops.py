"""Normalised rotation as torch ops, for whoever traces; the rules are those of `torch_ops`."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.torch_ops import DONATED, KEPT, NAMESPACE, ROTARY, dense, like, settle

_NORMS: Final = "Tensor? query_weight, Tensor? key_weight, float epsilon"


@torch.library.custom_op(
    f"{NAMESPACE}::fused_qk_norm_rope",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor positions, Tensor query, Tensor key, {_NORMS}, {ROTARY}) -> (Tensor, Tensor)",
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
    """Return query and key with each head normalised and turned."""
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
    return native.fused_qk_norm_rope(*arguments, KEPT)


@fused_qk_norm_rope.register_fake
def _(
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
    """Return what the results are like."""
    del positions, query_weight, key_weight, epsilon, head_size, rotary_dim, cos_sin_cache, is_neox_style
    return like(query), like(key)


@torch.library.custom_op(
    f"{NAMESPACE}::fused_qk_norm_rope_",
    mutates_args=("query", "key"),
    device_types="cpu",
    schema=f"(Tensor positions, Tensor(a!) query, Tensor(b!) key, {_NORMS}, {ROTARY}) -> ()",
)
def fused_qk_norm_rope_(
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
) -> None:
    """Normalise and turn each head of query and key where they lie."""
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
    settle((query, key), native.fused_qk_norm_rope(*arguments, DONATED))


def donating_fused_qk_norm_rope(
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
    """Return query and key, normalised and turned in place where they are contiguous; new tensors otherwise."""
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
    if not (dense(query) and dense(key)):
        functional: tuple[Tensor, Tensor] = fused_qk_norm_rope(*arguments)
        return functional
    fused_qk_norm_rope_(*arguments)
    return query, key
