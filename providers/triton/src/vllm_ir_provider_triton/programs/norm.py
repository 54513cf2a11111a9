"""Root-mean-square normalisation of rows, alone or of the sum with a residual; a program has whole rows.

A row of one block is read once and stays in registers; a longer one is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.numbers import offsets, rounded, row_sums


@triton.jit  # type: ignore[untyped-decorator]
def read(x: tl.tensor, residual: tl.tensor, there: tl.tensor, FUSED: tl.constexpr) -> tl.tensor:
    """Return a block of numbers in float32, those of the residual added."""
    v = tl.load(x, mask=there, other=0.0).to(tl.float32)
    if FUSED:
        v += tl.load(residual, mask=there, other=0.0).to(tl.float32)
    return v


@triton.jit  # type: ignore[untyped-decorator]
def write(
    v: tl.tensor,
    scale: tl.tensor,
    out: tl.tensor,
    residual_out: tl.tensor,
    weight: tl.tensor,
    there: tl.tensor,
    inside: tl.tensor,
    FUSED: tl.constexpr,
    WEIGHTED: tl.constexpr,
) -> None:
    """Write the normalised block, rounded to the weight's dtype before the multiply, and the sum."""
    if FUSED:
        tl.store(residual_out, v.to(residual_out.dtype.element_ty), mask=there)
    v = v * scale[:, None]
    if WEIGHTED:
        w = tl.load(weight, mask=inside, other=0.0)
        v = rounded(rounded(v, w.dtype) * w.to(tl.float32)[None, :], w.dtype)
    tl.store(out, v.to(out.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def norm(
    out: tl.tensor,
    residual_out: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    x_stride0: tl.tensor,
    residual_stride0: tl.tensor,
    size: tl.tensor,
    measured: tl.tensor,
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
    FUSED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    LOOP: tl.constexpr,
    HALVINGS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Normalise ROWS rows of `size` elements, over the mean square of the first `measured` of them.

    The outputs are contiguous; they may be the inputs. Without residual or weight their pointers are never read.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    mine = (row < rows)[:, None]
    x_row = (x + offsets(row, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE))[:, None]
    residual_row = x_row
    if FUSED:
        places = offsets(
            row, residual_size1, residual_size2, residual_stride0, residual_stride1, residual_stride2, ONE_STRIDE
        )
        residual_row = (residual + places)[:, None]
    out_row = (out + row * size)[:, None]
    residual_out_row = (residual_out + row * size)[:, None]
    if LOOP:
        total = tl.zeros([ROWS], tl.float32)
        for start in range(0, size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            there = mine & (column < size)[None, :]
            v = read(x_row + column[None, :], residual_row + column[None, :], there, FUSED)
            total += row_sums(tl.where((column < measured)[None, :], v * v, 0.0), ROWS, HALVINGS)
        scale = tl.rsqrt(tl.div_rn(total, measured.to(tl.float32)) + epsilon)
        for start in range(0, size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < size
            there = mine & inside[None, :]
            v = read(x_row + column[None, :], residual_row + column[None, :], there, FUSED)
            write(
                v,
                scale,
                out_row + column[None, :],
                residual_out_row + column[None, :],
                weight + column,
                there,
                inside,
                FUSED,
                WEIGHTED,
            )
    else:
        column = tl.arange(0, BLOCK)
        inside = column < size
        there = mine & inside[None, :]
        v = read(x_row + column[None, :], residual_row + column[None, :], there, FUSED)
        total = row_sums(tl.where((column < measured)[None, :], v * v, 0.0), ROWS, HALVINGS)
        scale = tl.rsqrt(tl.div_rn(total, measured.to(tl.float32)) + epsilon)
        write(
            v,
            scale,
            out_row + column[None, :],
            residual_out_row + column[None, :],
            weight + column,
            there,
            inside,
            FUSED,
            WEIGHTED,
        )
