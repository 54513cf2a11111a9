"""The launch of rotary_embedding, whose tensors are cut into tokens and heads rather than rows.

What is shared with the other ops is in `geometry`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from vllm_ir_provider_vllm_c import variants
from vllm_ir_provider_vllm_c.geometry import ROTARY, ROTARY_THREADS, WARP, Launch, aligned, dtype_name, place
from vllm_ir_provider_vllm_c.variants import ACCESS, SIZES

if TYPE_CHECKING:
    from torch import Tensor

    from vllm_ir_provider_vllm_c.geometry import Place

Half = tuple["Place", int, int]
"""Where the tokens of a tensor lie, from head to head in elements, and heads of a token."""


def count_of(x: Tensor, tokens: int, head_size: int) -> int:
    """Return how many heads a token has; arguments as `heads`."""
    if x.shape[-1] != head_size:
        return x.shape[-1] // head_size
    return x.shape[-2] if x.dim() > 2 and math.prod(x.shape[:-2]) == tokens else 1  # noqa: PLR2004 - and their elements


def heads(x: Tensor, tokens: int, head_size: int) -> Half:
    """Return how a query or key is cut, as native cuts it.

    Args:
        x: [..., heads * head_size], [..., heads, head_size], or one head a token.
        tokens: how many positions there are.
        head_size: elements of a head.
    """
    if x.shape[-1] == head_size and x.dim() > 2 and math.prod(x.shape[:-2]) == tokens:  # noqa: PLR2004 - as above
        return place(x, x.shape[:-2], x.stride()[:-2]), x.stride(-2), x.shape[-2]
    return place(x), head_size, count_of(x, tokens, head_size)


def plans(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cache: Tensor,
    outputs: tuple[Tensor, Tensor],
    *,
    neox: bool,
) -> tuple[Launch, ...]:
    """Plan the rotation of query and key into contiguous outputs, which may be query and key themselves.

    It is one launch, but where a single position is for rows of which query and key have not as many: a launch each.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    given = positions, query, key, head_size, rotary_dim, cache, outputs
    if positions.numel() != 1 or (query.dim() == key.dim() == 2 and query.shape[0] == key.shape[0]):  # noqa: PLR2004 - rows
        return (plan(*given, neox=neox),)
    rows = [x.numel() // max(count_of(x, 1, head_size) * head_size, 1) for x in (query, key)]
    if rows[0] == rows[1]:
        return (plan(*given, neox=neox),)
    return tuple(
        plan(positions, x, x, head_size, rotary_dim, cache, (out, out), neox=neox, alone=True)
        for x, out in zip((query, key), outputs, strict=True)
    )


def plan(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cache: Tensor,
    outputs: tuple[Tensor, Tensor],
    *,
    neox: bool,
    alone: bool = False,
) -> Launch:
    """Plan one launch for query and key, or for a query alone, which stands for both; arguments as `plans`.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    dtype = dtype_name(query.dtype)
    number, tokens = SIZES[dtype], positions.numel()
    pairs = ACCESS // number >> (not neox)
    wide = rotary_dim // 2 % pairs == 0 and cache.data_ptr() % ACCESS == 0
    wide = wide and cache.stride(0) * cache.element_size() % ACCESS == 0
    # A pack of cosines that is no multiple of 16 bytes still has to begin at a multiple of itself.
    wide = wide and rotary_dim // 2 * cache.element_size() % min(ACCESS, pairs * cache.element_size()) == 0
    packed: list[int] = []
    most, counts = 0, set()
    for x, out, turns in zip((query, key), outputs, (True, not alone), strict=True):
        (source, distance, count), (target, out_distance, _) = (
            heads(x, tokens, head_size),
            heads(out, tokens, head_size),
        )
        counts.add(x.numel() // (count * head_size) if count else 0)
        for where, step in ((source, distance), (target, out_distance)):
            wide = wide and aligned(where, number) and step * number % ACCESS == 0
        copies = x.data_ptr() != out.data_ptr() and rotary_dim < head_size
        packed += [*source, *target, distance, out_distance, count if turns else 0, copies]
        most = max(most, count)
    rows = max(counts)
    if counts != {tokens} and not (tokens == 1 and len(counts) == 1):
        msg = f"rotary_embedding: query and key have {sorted(counts)} tokens, and there are {tokens} positions"
        raise ValueError(msg)
    steps = most * (rotary_dim // 2 // (pairs if wide else 1))
    threads = min(ROTARY_THREADS, -(-max(steps, 1) // WARP) * WARP)
    arguments = ROTARY.pack(
        *packed,
        *place(positions, positions.shape, positions.stride()),
        cache.data_ptr(),
        cache.stride(0),
        cache.shape[0],
        tokens,
        head_size,
        rotary_dim,
        positions.dtype == torch.int64,
        cache.dtype != query.dtype,
    )
    return Launch(
        variants.program("rotary", dtype),
        variants.rotary(dtype, aligned=wide, neox=neox),
        rows,
        (threads, 1),
        arguments,
    )
