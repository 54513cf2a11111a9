"""Root-mean-square normalisation of rows, alone or of the sum with a residual, and quantisation of what comes of it.

Normalised values are rounded as if they had been stored, then quantised: by one scale that is known, or by the largest
of their row. A program has whole rows, read once; they stay in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.fp8 import bounded, magnitude, quantized, token_scale
from vllm_ir_provider_triton.programs.norm import read
from vllm_ir_provider_triton.programs.numbers import offsets, rounded, row_sums


@triton.jit  # type: ignore[untyped-decorator]
def norm_quant(
    x: tl.tensor,
    out: tl.tensor,
    residual_out: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    scales: tl.tensor,
    bound: tl.tensor,
    x_stride0: tl.tensor,
    residual_stride0: tl.tensor,
    size: tl.tensor,
    rows: tl.tensor,
    x_size1: tl.tensor,
    x_size2: tl.tensor,
    x_stride1: tl.tensor,
    x_stride2: tl.tensor,
    residual_size1: tl.tensor,
    residual_size2: tl.tensor,
    residual_stride1: tl.tensor,
    residual_stride2: tl.tensor,
    epsilon: tl.tensor,
    LIMIT: tl.constexpr,
    INSTRUCTION: tl.constexpr,
    FUSED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DYNAMIC: tl.constexpr,
    BOUNDED: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    HALVINGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write ROWS rows of `size` elements, quantised; with DYNAMIC a scale for each, with FUSED the sums, too.

    Outputs are contiguous; the sums may be written where the residual lies. What a flag leaves out is never read.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mine = row < rows
    column = tl.arange(0, BLOCK)
    inside = column < size
    there = mine[:, None] & inside[None, :]
    x_row = (x + offsets(row, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE))[:, None]
    residual_row = x_row
    if FUSED:
        places = offsets(
            row, residual_size1, residual_size2, residual_stride0, residual_stride1, residual_stride2, ONE_STRIDE
        )
        residual_row = (residual + places)[:, None]
    v = read(x_row + column[None, :], residual_row + column[None, :], there, FUSED)
    root = tl.rsqrt(tl.div_rn(row_sums(v * v, ROWS, HALVINGS), size.to(tl.float32)) + epsilon)
    if FUSED:
        tl.store(
            (residual_out + row * size)[:, None] + column[None, :],
            v.to(residual_out.dtype.element_ty),
            mask=there,
        )
    v = v * root[:, None]
    if WEIGHTED:
        w = tl.load(weight + column, mask=inside, other=0.0)
        v = rounded(rounded(v, w.dtype) * w.to(tl.float32)[None, :], w.dtype)
    v = rounded(v, x.dtype.element_ty)
    if DYNAMIC:
        largest = tl.max(tl.where(there, magnitude(v), 0), axis=1)
        scale = token_scale(bounded(largest, bound, BOUNDED), LIMIT)
        tl.store(scales + row, scale, mask=mine)
        v = v * tl.div_rn(1.0, scale)[:, None]
    else:
        v = v * tl.div_rn(1.0, tl.load(scales))
    tl.store((out + row * size)[:, None] + column[None, :], quantized(v, LIMIT, INSTRUCTION), mask=there)
