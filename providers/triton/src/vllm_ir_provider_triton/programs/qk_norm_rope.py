"""Normalisation of each head of query and key, then rotary position embedding; a program has some heads of one token.

In place each element is read and written by one program, everything it reads before anything it writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.numbers import offsets, rounded, row_sums
from vllm_ir_provider_triton.programs.rotary import angles, turn


@triton.jit  # type: ignore[untyped-decorator]
def normalized(
    v: tl.tensor,
    root: tl.tensor,
    weight: tl.tensor,
    inside: tl.tensor,
    dtype: tl.constexpr,
    WEIGHTED: tl.constexpr,
) -> tl.tensor:
    """Return elements of heads over their root mean square, times their weights, as they are once stored."""
    v = v * root[:, None]
    if WEIGHTED:
        w = tl.load(weight, mask=inside, other=0.0)
        v = rounded(rounded(v, w.dtype) * w.to(tl.float32)[None, :], w.dtype)
    return rounded(v, dtype)


@triton.jit  # type: ignore[untyped-decorator]
def normalize_and_turn(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    stride: tl.tensor,
    heads: tl.tensor,
    head_size: tl.tensor,
    half: tl.tensor,
    first_head: tl.tensor,
    epsilon: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    NEOX: tl.constexpr,
    REST: tl.constexpr,
    WEIGHTED: tl.constexpr,
    HALVINGS: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Do it to HEADS heads of one token from x, `stride` from head to head, into the contiguous out.

    With REST there is more of a head than the 2 * half elements that are turned; it is read twice.
    """
    head = first_head + tl.arange(0, HEADS)
    mine = (head < heads)[:, None]
    source = (x + head * stride)[:, None]
    target = (out + head * head_size)[:, None]
    dtype: tl.constexpr = x.dtype.element_ty
    pair = tl.arange(0, PAIRS)
    inside = pair < half
    there = mine & inside[None, :]
    total = tl.zeros([HEADS], tl.float32)
    if REST:  # before what is turned is read: the layout of what is read last is that of what follows
        for start in range(2 * half, head_size, PAIRS):
            rest_there = mine & (start + pair < head_size)[None, :]
            rest = tl.load(source + (start + pair)[None, :], mask=rest_there, other=0.0).to(tl.float32)
            total += row_sums(rest * rest, HEADS, HALVINGS)
    element = tl.arange(0, 2 * PAIRS)
    both_inside = element < 2 * half
    both_there = mine & both_inside[None, :]
    if NEOX:
        first = tl.load(source + pair[None, :], mask=there, other=0.0).to(tl.float32)
        second = tl.load(source + half + pair[None, :], mask=there, other=0.0).to(tl.float32)
        total += row_sums(first * first + second * second, HEADS, HALVINGS)
    else:
        both = tl.load(source + element[None, :], mask=both_there, other=0.0).to(tl.float32)
        total += row_sums(both * both, HEADS, HALVINGS + 1)
    root = tl.rsqrt(tl.div_rn(total, head_size.to(tl.float32)) + epsilon)
    if NEOX:
        first = normalized(first, root, weight + pair, inside, dtype, WEIGHTED)
        second = normalized(second, root, weight + half + pair, inside, dtype, WEIGHTED)
        first, second = turn(first, second, cosine[None, :], sine[None, :], dtype)
        tl.store(target + pair[None, :], first, mask=there)
        tl.store(target + half + pair[None, :], second, mask=there)
    else:
        both = normalized(both, root, weight + element, both_inside, dtype, WEIGHTED)
        first, second = tl.split(tl.reshape(both, [HEADS, PAIRS, 2]))
        first, second = turn(first, second, cosine[None, :], sine[None, :], dtype)
        both = tl.reshape(tl.join(first, second), [HEADS, 2 * PAIRS])
        tl.store(target + element[None, :], both, mask=both_there)
    if REST:
        for start in range(2 * half, head_size, PAIRS):
            rest_inside = start + pair < head_size
            rest_there = mine & rest_inside[None, :]
            rest = tl.load(source + (start + pair)[None, :], mask=rest_there, other=0.0).to(tl.float32)
            rest = normalized(rest, root, weight + start + pair, rest_inside, dtype, WEIGHTED)
            tl.store(target + (start + pair)[None, :], rest.to(dtype), mask=rest_there)


@triton.jit  # type: ignore[untyped-decorator]
def qk_norm_rope(
    query_out: tl.tensor,
    key_out: tl.tensor,
    query: tl.tensor,
    key: tl.tensor,
    cache: tl.tensor,
    query_weight: tl.tensor,
    key_weight: tl.tensor,
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
    epsilon: tl.tensor,
    NEOX: tl.constexpr,
    REST: tl.constexpr,
    QUERY_WEIGHTED: tl.constexpr,
    KEY_WEIGHTED: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    HALVINGS: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
) -> None:
    """Normalise and turn HEADS heads of query or key; which, and of which token, is as in `rotary`."""
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
        normalize_and_turn(
            query_out + token * query_heads * head_size,
            query + offsets(token, query_size1, query_size2, query_stride0, query_stride1, query_stride2, ONE_STRIDE),
            query_weight,
            query_head_stride,
            query_heads,
            head_size,
            half,
            block * HEADS,
            epsilon,
            cosine,
            sine,
            NEOX,
            REST,
            QUERY_WEIGHTED,
            HALVINGS,
            HEADS,
            PAIRS,
        )
    else:
        normalize_and_turn(
            key_out + token * key_heads * head_size,
            key + offsets(token, key_size1, key_size2, key_stride0, key_stride1, key_stride2, ONE_STRIDE),
            key_weight,
            key_head_stride,
            key_heads,
            head_size,
            half,
            (block - query_blocks) * HEADS,
            epsilon,
            cosine,
            sine,
            NEOX,
            REST,
            KEY_WEIGHTED,
            HALVINGS,
            HEADS,
            PAIRS,
        )
