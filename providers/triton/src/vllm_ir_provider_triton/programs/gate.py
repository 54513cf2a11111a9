"""Gated activations: the first half of a row through an activation, rounded, times the second half."""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.numbers import exp, offsets, rounded, tanh


@triton.jit  # type: ignore[untyped-decorator]
def activated(v: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Return silu (0), gelu (1) or its tanh approximation (2) of v, by the formulas of torch's CUDA kernels."""
    if ACTIVATION == 0:
        result = tl.div_rn(v, 1.0 + exp(-v))
    elif ACTIVATION == 1:
        result = v * 0.5 * (1.0 + tl.erf(v * 0.70710678118654752440))
    else:
        inner = 0.79788456080286535588 * (v + 0.044715 * (v * v * v))
        result = 0.5 * v * (1.0 + tanh(inner))
    return result


@triton.jit  # type: ignore[untyped-decorator]
def gate(
    out: tl.tensor,
    x: tl.tensor,
    x_stride0: tl.tensor,
    size: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    x_size1: tl.tensor,
    x_size2: tl.tensor,
    x_stride1: tl.tensor,
    x_stride2: tl.tensor,
    ACTIVATION: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write BLOCK elements of ROWS rows, `size` a half, which `columns` programs share; `out` is contiguous."""
    program = tl.program_id(0)
    row = (program // columns).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (program % columns) * BLOCK + tl.arange(0, BLOCK)
    there = (row < rows)[:, None] & (column < size)[None, :]
    place = (x + offsets(row, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE))[:, None] + column[None, :]
    gates = tl.load(place, mask=there, other=0.0)
    ups = tl.load(place + size, mask=there, other=0.0)
    active = rounded(activated(gates.to(tl.float32), ACTIVATION), gates.dtype)
    result = active * ups.to(tl.float32)
    tl.store((out + row * size)[:, None] + column[None, :], result.to(gates.dtype), mask=there)
