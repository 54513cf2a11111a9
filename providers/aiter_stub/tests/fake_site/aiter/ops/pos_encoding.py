"""Rotations in place, each product and each sum rounded to the dtype of the heads."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter.strict import alike, demand, flushed, nearest, plain, widened


def rotary_embedding_fwd(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    cos_cache: Tensor,
    sin_cache: Tensor,
    is_neox: bool,
    is_nope_first: bool,
) -> None:
    """Turn the heads of query and key where they lie."""
    tensors = {"positions": positions, "query": query, "key": key, "cos_cache": cos_cache, "sin_cache": sin_cache}
    plain(
        "rotary_embedding_fwd",
        **{name: (value, Tensor) for name, value in tensors.items()},
        head_size=(head_size, int),
        is_neox=(is_neox, bool),
        is_nope_first=(is_nope_first, bool),
    )
    alike(query, key, cos_cache, sin_cache)
    demand(positions.dtype == torch.int64 and positions.is_contiguous(), f"positions of {positions.dtype}")
    demand(positions.device == query.device, f"positions on {positions.device}")
    tokens, half = query.numel() // query.shape[-1], cos_cache.shape[-1]
    demand(tokens > 0, "no tokens: a grid without blocks")
    demand(positions.numel() == tokens, f"{positions.numel()} positions, {tokens} tokens")
    demand(key.numel() // key.shape[-1] == tokens, "query and key of other tokens")
    demand(int(positions.min()) >= 0 and int(positions.max()) < cos_cache.shape[0], "a position outside the caches")
    demand(cos_cache.is_contiguous() and sin_cache.is_contiguous(), "caches with strides")
    demand(cos_cache.shape == sin_cache.shape and cos_cache.dim() == 2, f"caches of {tuple(cos_cache.shape)}")
    cos, sin = (cache[positions].unsqueeze(1) for cache in (cos_cache, sin_cache))
    for x in (query, key):
        demand(x.dim() == 2 and x.stride(1) == 1, f"shape {tuple(x.shape)}, strides {x.stride()}")
        demand(x.shape[-1] % head_size == 0 and 2 * half <= head_size, f"heads of {head_size}, turned by {half}")
        heads = x.view(tokens, -1, head_size)
        start = head_size - 2 * half if is_nope_first else 0
        turned = heads[..., start : start + 2 * half]
        first, second = (turned[..., :half], turned[..., half:]) if is_neox else (turned[..., ::2], turned[..., 1::2])
        one = _sum(_product(first, cos), -_product(second, sin))
        other = _sum(_product(second, cos), _product(first, sin))
        first.copy_(one)
        second.copy_(other)


def _product(first: Tensor, second: Tensor) -> Tensor:
    """Return a product, rounded."""
    return nearest(flushed(widened(first) * widened(second)), first.dtype)


def _sum(first: Tensor, second: Tensor) -> Tensor:
    """Return a sum, rounded."""
    return nearest(flushed(widened(first) + widened(second)), first.dtype)
