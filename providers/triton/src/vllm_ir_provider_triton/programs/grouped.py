"""Quantisation by the largest magnitude of a row, or of each group of its elements; a program has whole groups.

A group of one block is read once and stays in registers; a longer one is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.fp8 import bounded, group_scale, magnitude, quantized, token_scale
from vllm_ir_provider_triton.programs.numbers import offsets
from vllm_ir_provider_triton.programs.producing import produced


@triton.jit  # type: ignore[untyped-decorator]
def grouped(
    x: tl.tensor,
    out: tl.tensor,
    scales: tl.tensor,
    bound: tl.tensor,
    x_stride0: tl.tensor,
    size: tl.tensor,
    pieces: tl.tensor,
    groups: tl.tensor,
    row_step: tl.tensor,
    group_step: tl.tensor,
    x_size1: tl.tensor,
    x_size2: tl.tensor,
    x_stride1: tl.tensor,
    x_stride2: tl.tensor,
    LIMIT: tl.constexpr,
    INSTRUCTION: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE: tl.constexpr,
    BOUNDED: tl.constexpr,
    POWER: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    LOOP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write ROWS of all `pieces`, each of `size` elements, `groups` of them a row; and a scale for each.

    With WHOLE a piece is a row: its scale is that of a token, and its reciprocal is rounded before the multiply.
    Otherwise elements are divided by the scale of their group. `out` is contiguous, scales lie at steps; without
    BOUNDED the pointer of the bound is never read.
    """
    piece = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mine = piece < pieces
    if WHOLE:
        x_piece = x + offsets(piece, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE)
        scale_place = scales + piece
    else:
        row = piece // groups
        group = piece % groups
        x_piece = x + offsets(row, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE) + group * size
        scale_place = scales + row * row_step + group * group_step
    x_piece = x_piece[:, None]
    out_piece = (out + piece * size)[:, None]
    half = groups * size
    column = tl.arange(0, BLOCK)
    if LOOP:
        largest = tl.zeros([ROWS], tl.int32)
        for start in range(0, size, BLOCK):
            there = mine[:, None] & (start + column < size)[None, :]
            v = produced(x_piece + (start + column)[None, :], half, there, GATED)
            largest = tl.maximum(largest, tl.max(magnitude(v), axis=1))
    else:
        there = mine[:, None] & (column < size)[None, :]
        v = produced(x_piece + column[None, :], half, there, GATED)
        largest = tl.max(magnitude(v), axis=1)
    if WHOLE:
        scale = token_scale(bounded(largest, bound, BOUNDED), LIMIT)
        factor = tl.div_rn(1.0, scale)
    else:
        scale = group_scale(largest, LIMIT, POWER)
        factor = scale
    tl.store(scale_place, scale, mask=mine)
    if LOOP:
        for start in range(0, size, BLOCK):
            there = mine[:, None] & (start + column < size)[None, :]
            v = produced(x_piece + (start + column)[None, :], half, there, GATED)
            v = v * factor[:, None] if WHOLE else tl.div_rn(v, factor[:, None])
            tl.store(out_piece + (start + column)[None, :], quantized(v, LIMIT, INSTRUCTION), mask=there)
    else:
        v = v * factor[:, None] if WHOLE else tl.div_rn(v, factor[:, None])
        tl.store(out_piece + column[None, :], quantized(v, LIMIT, INSTRUCTION), mask=there)
