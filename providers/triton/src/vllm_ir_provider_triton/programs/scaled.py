"""Quantisation by scales that are known: one for all, one for each column, or one from what `peak` has found."""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.fp8 import bounded, quantized, token_scale
from vllm_ir_provider_triton.programs.numbers import offsets
from vllm_ir_provider_triton.programs.producing import produced


@triton.jit  # type: ignore[untyped-decorator]
def scaled(
    x: tl.tensor,
    out: tl.tensor,
    scale: tl.tensor,
    scale_out: tl.tensor,
    bound: tl.tensor,
    x_stride0: tl.tensor,
    size: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_size1: tl.tensor,
    x_size2: tl.tensor,
    x_stride1: tl.tensor,
    x_stride2: tl.tensor,
    LIMIT: tl.constexpr,
    INSTRUCTION: tl.constexpr,
    GATED: tl.constexpr,
    CHANNELS: tl.constexpr,
    DYNAMIC: tl.constexpr,
    BOUNDED: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write BLOCK elements of ROWS rows of `size`, which `columns` programs share; `out` is contiguous.

    The reciprocal of a scale is rounded before the multiply, as native's is. With DYNAMIC `scale` has the bits of the
    largest magnitude, and the scale that follows is written once; without, `scale_out` and `bound` are never touched.
    """
    program = tl.program_id(0)
    row = (program // columns).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % columns) * BLOCK + tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < size)[None, :]
    place = (x + offsets(row, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE))[:, None] + column[None, :]
    v = produced(place, size, there, GATED)
    if CHANNELS:
        v = v * tl.div_rn(1.0, tl.load(scale + column, mask=column < size, other=1.0))[None, :]
    elif DYNAMIC:
        factor = token_scale(bounded(tl.load(scale), bound, BOUNDED), LIMIT)
        if program == 0:
            tl.store(scale_out, factor)
        v = v * tl.div_rn(1.0, factor)
    else:
        v = v * tl.div_rn(1.0, tl.load(scale))
    tl.store((out + row * size)[:, None] + column[None, :], quantized(v, LIMIT, INSTRUCTION), mask=there)
