"""The launch of rotary_embedding, whose tensors are cut into tokens and heads rather than rows.

What is shared with the other ops is in `geometry`.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from vllm_ir_provider_vllm_c import variants
from vllm_ir_provider_vllm_c.geometry import (
    ROTARY,
    ROTARY_THREADS,
    WARP,
    Launch,
    aligned,
    dtype_name,
    group_block,
    place,
    weight_kind,
)
from vllm_ir_provider_vllm_c.variants import ACCESS, SIZES

if TYPE_CHECKING:
    from torch import Tensor

    from vllm_ir_provider_vllm_c.geometry import Place

QK_NORM: Final = struct.Struct("=QQqiif4x")
"""What `QkNormArguments` has behind its `RotaryArguments`."""

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


class Norms(NamedTuple):
    """What heads are normalised with before they are turned.

    Args:
        query_weight: [head_size] of query's dtype or float32; None for no multiply.
        key_weight: the same for key.
        epsilon: added to the mean of squares.
    """

    query_weight: Tensor | None
    key_weight: Tensor | None
    epsilon: float


class Packed(NamedTuple):
    """A call as the kernels have it.

    Args:
        arguments: the `RotaryArguments` of the sources.
        wide: whether packs of pairs lie where they can be moved at once.
        rows: tokens of query and key.
        heads: of a token, query's and key's.
        most: the larger of the two.
    """

    arguments: bytes
    wide: bool
    rows: int
    heads: int
    most: int


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
    norms: Norms | None = None,
) -> tuple[Launch, ...]:
    """Plan the rotation of query and key into contiguous outputs, which may be query and key themselves.

    It is one launch, but where a single position is for rows of which query and key have not as many: a launch each.

    Args:
        positions: of tokens, or a single one.
        query: what is turned, as `heads` has it.
        key: the same.
        head_size: elements of a head.
        rotary_dim: how many of them are turned.
        cache: cosines and sines.
        outputs: what is written.
        neox: whether pairs are of two halves.
        norms: what heads are normalised with before; None where they are only turned.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    given = positions, query, key, head_size, rotary_dim, cache, outputs
    together = positions.numel() != 1 or (query.dim() == key.dim() == 2 and query.shape[0] == key.shape[0])  # noqa: PLR2004 - rows
    if not together:
        rows = [x.numel() // max(count_of(x, 1, head_size) * head_size, 1) for x in (query, key)]
        together = rows[0] == rows[1]
    if together:
        return (plan(*given, neox=neox, norms=norms),)
    weights = (None, None) if norms is None else norms[:2]
    return tuple(
        plan(
            positions,
            x,
            x,
            head_size,
            rotary_dim,
            cache,
            (out, out),
            neox=neox,
            alone=True,
            norms=None if norms is None else Norms(weight, weight, norms.epsilon),
        )
        for x, out, weight in zip((query, key), outputs, weights, strict=True)
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
    norms: Norms | None = None,
) -> Launch:
    """Plan one launch for query and key, or for a query alone, which stands for both; arguments as `plans`.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    dtype = dtype_name(query.dtype)
    # Half a pack of each of the two where a head is also read in whole packs.
    pairs = ACCESS // SIZES[dtype] >> (norms is not None or not neox)
    op = "rotary_embedding" if norms is None else "fused_qk_norm_rope"
    packed = pack(op, positions, query, key, head_size, rotary_dim, cache, outputs, pairs=pairs, alone=alone)
    if norms is not None:
        return normalizing(query, head_size, norms, packed, neox=neox)
    steps = packed.most * (rotary_dim // 2 // (pairs if packed.wide else 1))
    threads = min(ROTARY_THREADS, -(-max(steps, 1) // WARP) * WARP)
    expression = variants.rotary(dtype, aligned=packed.wide, neox=neox)
    return Launch(variants.program("rotary", dtype), expression, packed.rows, (threads, 1), packed.arguments)


def normalizing(query: Tensor, head_size: int, norms: Norms, packed: Packed, *, neox: bool) -> Launch:
    """Plan what normalises heads before it turns them; a head's threads go by its size alone."""
    dtype = dtype_name(query.dtype)
    wide = packed.wide and head_size * SIZES[dtype] % ACCESS == 0
    addresses = [0 if each is None else each.data_ptr() for each in norms[:2]]
    wide = wide and not any(each % ACCESS for each in addresses)
    lanes, height, _ = group_block(head_size, dtype)
    kinds = [weight_kind(query, each) for each in norms[:2]]
    arguments = packed.arguments + QK_NORM.pack(*addresses, packed.rows, *kinds, norms.epsilon)
    expression = variants.qk_norm_rope(dtype, aligned=wide, neox=neox)
    blocks = -(-packed.rows * packed.heads // height)
    return Launch(variants.program("qk_norm_rope", dtype), expression, blocks, (lanes, height), arguments)


def pack(
    op: str,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cache: Tensor,
    outputs: tuple[Tensor, Tensor],
    *,
    pairs: int,
    alone: bool,
) -> Packed:
    """Return a call of which each thread turns so many pairs at once where it can; `op` is named in errors.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    number, tokens = SIZES[dtype_name(query.dtype)], positions.numel()
    wide = rotary_dim // 2 % pairs == 0 and cache.data_ptr() % ACCESS == 0
    wide = wide and cache.stride(0) * cache.element_size() % ACCESS == 0
    # A pack of cosines that is no multiple of 16 bytes still has to begin at a multiple of itself.
    wide = wide and rotary_dim // 2 * cache.element_size() % min(ACCESS, pairs * cache.element_size()) == 0
    packed: list[int] = []
    all_heads, counts = [], set()
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
        all_heads.append(count if turns else 0)
    rows = max(counts)
    if counts != {tokens} and not (tokens == 1 and len(counts) == 1):
        msg = f"{op}: query and key have {sorted(counts)} tokens, and there are {tokens} positions"
        raise ValueError(msg)
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
    return Packed(arguments, wide, rows, sum(all_heads), max(all_heads))
