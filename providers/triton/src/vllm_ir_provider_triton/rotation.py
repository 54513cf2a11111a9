"""The launch of rotary_embedding, whose tensors are cut into tokens and heads rather than rows.

What is shared with the other ops is in `geometry`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vllm_ir_provider_triton import configuration
from vllm_ir_provider_triton.geometry import dtype_name, one_stride, place, rows_of
from vllm_ir_provider_triton.variants import ACCESS, SIZES, Launch, Variant

if TYPE_CHECKING:
    from torch import Tensor

    from vllm_ir_provider_triton.geometry import Place

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
        return place(x.shape[:-2], x.stride()[:-2]), x.stride(-2), x.shape[-2]
    return rows_of(x), head_size, count_of(x, tokens, head_size)


def plans(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cache: Tensor,
    outputs: tuple[Tensor, Tensor],
    arch: str,
    *,
    neox: bool,
) -> tuple[Launch, ...]:
    """Plan the rotation of query and key into contiguous outputs, which may be query and key themselves.

    It is one launch, but where a single position is for rows of which query and key have not as many: a launch each.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    given = positions, query, key, head_size, rotary_dim, cache, outputs, arch
    if positions.numel() != 1 or (query.dim() == key.dim() == 2 and query.shape[0] == key.shape[0]):  # noqa: PLR2004 - rows
        return (plan(*given, neox=neox),)
    rows = [x.numel() // max(count_of(x, 1, head_size) * head_size, 1) for x in (query, key)]
    if rows[0] == rows[1]:
        return (plan(*given, neox=neox),)
    return tuple(
        plan(positions, x, x, head_size, rotary_dim, cache, (out, out), arch, neox=neox, alone=True)
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
    arch: str,
    *,
    neox: bool,
    alone: bool = False,
) -> Launch:
    """Plan one launch for query and key, or for a query alone, which stands for both; arguments as `plans`.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    dtype, tokens = dtype_name(query.dtype), positions.numel()
    number = SIZES[dtype]
    where, strides, counts, copies, rows = [place(positions.shape, positions.stride())], [], [], [], set()
    for x, out in zip((query, key), outputs, strict=True):
        source, stride, count = heads(x, tokens, head_size)
        where.append(source)
        strides.append(stride)
        counts.append(count)
        copies.append(x.data_ptr() != out.data_ptr() and rotary_dim < head_size)
        rows.add(x.numel() // (count * head_size) if count else 0)
    if rows != {tokens} and not (tokens == 1 and len(rows) == 1):
        msg = f"rotary_embedding: query and key have {sorted(rows)} tokens, and there are {tokens} positions"
        raise ValueError(msg)
    if alone:
        counts[1] = 0
    shape = configuration.choose_heads(arch, rotary_dim // 2, max(counts), number)
    blocks = [-(-count // shape.rows) for count in counts]
    tensors = (*outputs, query, key, cache, positions)
    addresses = tuple([each.data_ptr() for each in tensors])
    variant = Variant(
        "rotary",
        (dtype, dtype, dtype, dtype, dtype_name(cache.dtype), dtype_name(positions.dtype)),
        (neox, *copies, all(map(one_stride, where)), shape.rows, shape.block),
        _wide(addresses[:5], (*strides, head_size, rotary_dim // 2), where[1:], number)
        and cache.stride(0) * min(number, cache.element_size()) % ACCESS == 0,
        shape.warps,
    )
    (position_stride, *position_rest), (query_stride, *query_rest), (key_stride, *key_rest) = where
    numbers = (
        cache.stride(0),
        query_stride,
        strides[0],
        key_stride,
        strides[1],
        head_size,
        rotary_dim // 2,
        tokens,
        cache.shape[0],
        *counts,
        blocks[0],
        sum(blocks),
        position_stride,
        *position_rest,
        *query_rest,
        *key_rest,
    )
    return Launch(variant, max(rows) * sum(blocks), tensors, addresses, numbers)


def _wide(addresses: tuple[int, ...], sizes: tuple[int, ...], where: list[Place], number: int) -> bool:
    """Tell whether pointers, sizes and the strides of tokens are multiples of an access."""
    bits = 0
    for address in addresses:
        bits |= address
    steps = 0
    for size in sizes:
        steps |= size
    for stride0, _, _, stride1, stride2 in where:
        steps |= stride0 | stride1 | stride2
    return not (bits % ACCESS or steps * number % ACCESS)
