"""Rotary position embedding of query and key: a program has some heads of one token.

In place each pair is read and written by one program, everything it reads before anything it writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.numbers import offsets, rounded


@triton.jit  # type: ignore[untyped-decorator]
def turn(first: tl.tensor, second: tl.tensor, cosine: tl.tensor, sine: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return pairs turned by their angles; every product is rounded to the dtype, as in native."""
    ahead = rounded(first * cosine, dtype) - rounded(second * sine, dtype)
    behind = rounded(second * cosine, dtype) + rounded(first * sine, dtype)
    return ahead.to(dtype), behind.to(dtype)


@triton.jit  # type: ignore[untyped-decorator]
def angles(
    place: tl.tensor,
    cache: tl.tensor,
    stride: tl.tensor,
    cache_rows: tl.tensor,
    half: tl.tensor,
    dtype: tl.constexpr,
    PAIRS: tl.constexpr,
) -> tl.tensor:
    """Return the cosines and sines of the position at a place, rounded to a dtype; NaN, and nothing read, outside."""
    position = tl.load(place).to(tl.int64)
    first = cache + position * stride + tl.arange(0, PAIRS)
    there = (tl.arange(0, PAIRS) < half) & (position >= 0) & (position < cache_rows)
    cosine = tl.load(first, mask=there, other=float("nan")).to(tl.float32)
    sine = tl.load(first + half, mask=there, other=float("nan")).to(tl.float32)
    return rounded(cosine, dtype), rounded(sine, dtype)


@triton.jit  # type: ignore[untyped-decorator]
def turn_heads(
    out: tl.tensor,
    x: tl.tensor,
    stride: tl.tensor,
    heads: tl.tensor,
    head_size: tl.tensor,
    half: tl.tensor,
    first_head: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    NEOX: tl.constexpr,
    COPIES: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Turn HEADS heads of one token from x, `stride` from head to head, into the contiguous out."""
    head = first_head + tl.arange(0, HEADS)
    mine = (head < heads)[:, None]
    source = (x + head * stride)[:, None]
    target = (out + head * head_size)[:, None]
    dtype: tl.constexpr = x.dtype.element_ty
    if NEOX:
        pair = tl.arange(0, PAIRS)
        there = mine & (pair < half)[None, :]
        first = tl.load(source + pair[None, :], mask=there, other=0.0).to(tl.float32)
        second = tl.load(source + half + pair[None, :], mask=there, other=0.0).to(tl.float32)
        first, second = turn(first, second, cosine[None, :], sine[None, :], dtype)
        tl.store(target + pair[None, :], first, mask=there)
        tl.store(target + half + pair[None, :], second, mask=there)
    else:
        element = tl.arange(0, 2 * PAIRS)
        there = mine & (element < 2 * half)[None, :]
        both = tl.load(source + element[None, :], mask=there, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, [HEADS, PAIRS, 2]))
        first, second = turn(first, second, cosine[None, :], sine[None, :], dtype)
        both = tl.reshape(tl.join(first, second), [HEADS, 2 * PAIRS])
        tl.store(target + element[None, :], both, mask=there)
    if COPIES:
        for start in range(2 * half, head_size, PAIRS):
            element = start + tl.arange(0, PAIRS)
            there = mine & (element < head_size)[None, :]
            tl.store(target + element[None, :], tl.load(source + element[None, :], mask=there), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def rotary(
    query_out: tl.tensor,
    key_out: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    cache: tl.tensor,
    positions: tl.tensor,
    cache_stride: tl.tensor,
    query_stride0: tl.tensor,
    query_head_stride: tl.tensor,
    key_stride0: tl.tensor,
    key_head_stride: tl.tensor,
    head_size: tl.tensor,
    half: tl.tensor,
    tokens: tl.tensor,
    cache_rows: tl.tensor,
    query_heads: tl.tensor,
    key_heads: tl.tensor,
    query_blocks: tl.tensor,
    blocks: tl.tensor,
    position_stride0: tl.tensor,
    position_size1: tl.tensor,
    position_size2: tl.tensor,
    position_stride1: tl.tensor,
    position_stride2: tl.tensor,
    query_size1: tl.tensor,
    query_size2: tl.tensor,
    query_stride1: tl.tensor,
    query_stride2: tl.tensor,
    key_size1: tl.tensor,
    key_size2: tl.tensor,
    key_stride1: tl.tensor,
    key_stride2: tl.tensor,
    NEOX: tl.constexpr,
    COPIES_QUERY: tl.constexpr,
    COPIES_KEY: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Turn HEADS heads of query or key; `blocks` programs have a token, the first `query_blocks` of them its query.

    A single position belongs to every token. One outside the cache has NaN for its angles: nothing is read there.
    """
    program = tl.program_id(0)
    token = (program // blocks).to(tl.int64)
    block = program % blocks
    place = offsets(
        tl.where(tokens == 1, 0, token),
        position_size1,
        position_size2,
        position_stride0,
        position_stride1,
        position_stride2,
        ONE_STRIDE,
    )
    cosine, sine = angles(positions + place, cache, cache_stride, cache_rows, half, query.dtype.element_ty, PAIRS)
    if block < query_blocks:
        turn_heads(
            query_out + token * query_heads * head_size,
            query + offsets(token, query_size1, query_size2, query_stride0, query_stride1, query_stride2, ONE_STRIDE),
            query_head_stride,
            query_heads,
            head_size,
            half,
            block * HEADS,
            cosine,
            sine,
            NEOX,
            COPIES_QUERY,
            HEADS,
            PAIRS,
        )
    else:
        turn_heads(
            key_out + token * key_heads * head_size,
            key + offsets(token, key_size1, key_size2, key_stride0, key_stride1, key_stride2, ONE_STRIDE),
            key_head_stride,
            key_heads,
            head_size,
            half,
            (block - query_blocks) * HEADS,
            cosine,
            sine,
            NEOX,
            COPIES_KEY,
            HEADS,
            PAIRS,
        )
