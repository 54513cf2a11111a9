"""The largest magnitude of a tensor, or of silu(gate) * up of it: the first of two launches with one scale for all."""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.fp8 import magnitude
from vllm_ir_provider_triton.programs.numbers import offsets
from vllm_ir_provider_triton.programs.producing import produced


@triton.jit  # type: ignore[untyped-decorator]
def peak(
    x: tl.tensor,
    largest: tl.tensor,
    x_stride0: tl.tensor,
    size: tl.tensor,
    rows: tl.tensor,
    x_size1: tl.tensor,
    x_size2: tl.tensor,
    x_stride1: tl.tensor,
    x_stride2: tl.tensor,
    GATED: tl.constexpr,
    ONE_STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Raise `largest`, zero at first, to the bits of the largest magnitude of ROWS rows of `size`.

    As integers they have one largest in any order, NaN above all. What is there already is asked first, since atomics
    on one address wait for each other; an old answer costs an atomic that changes nothing.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    x_row = (x + offsets(row, x_size1, x_size2, x_stride0, x_stride1, x_stride2, ONE_STRIDE))[:, None]
    found = tl.zeros([ROWS], tl.int32)
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        there = (row < rows)[:, None] & (column < size)[None, :]
        found = tl.maximum(found, tl.max(magnitude(produced(x_row + column[None, :], size, there, GATED)), axis=1))
    mine = tl.max(found, axis=0)
    if mine > tl.load(largest):
        tl.atomic_max(largest, mine, sem="relaxed")
