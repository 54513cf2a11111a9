"""From the sizes, strides and addresses of a call to what is launched: kernel, grid, block and packed arguments.

Nothing is run here, and no tensor's memory is read, so that tests plan the same launches for the CPU. A block's shape
and its kernel's kind depend on the size of a row alone, so a row's bits do not depend on the batch.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from vllm_ir_provider_vllm_c import variants
from vllm_ir_provider_vllm_c.variants import ACCESS, SIZES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from vllm_ir_provider_vllm_c.variants import Program

WARP: Final = 32
MOST_THREADS: Final = 1024
MOST_BLOCKS: Final = 2**31 - 1
ROWS_A_BLOCK: Final = 4
GATE_THREADS: Final = 256
ROTARY_THREADS: Final = 512
GROUP_THREADS: Final = 256
PACKS_A_THREAD: Final = 2

Place = tuple[int, int, int, int, int, int]
"""A `Rows` of the sources: address, size1, size2, stride0, stride1, stride2."""

NORM: Final = struct.Struct("=Q5qQ5qQQQqiiif")
GATE: Final = struct.Struct("=Q5qQqii")
HEADS: Final = "Q5qQ5qqqii"
ROTARY: Final = struct.Struct(f"={HEADS}{HEADS}Q5qQqqqiiii")


class Launch(NamedTuple):
    """One kernel with all that its launch needs; a tuple, since one is made for every call.

    Args:
        program: what has to be compiled.
        expression: the kernel in it.
        blocks: how many blocks; none means that there is nothing to do.
        threads: the block, along a row and across rows.
        arguments: the kernel's only parameter, as it lies in memory.
    """

    program: Program
    expression: str
    blocks: int
    threads: tuple[int, int]
    arguments: bytes


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without the module."""
    return str(dtype).removeprefix("torch.")


def place(x: Tensor, sizes: Sequence[int] | None = None, strides: Sequence[int] | None = None) -> Place:
    """Return where rows lie: leading dimensions as few as they can be, at most three.

    Args:
        x: whose address it is.
        sizes: of the leading dimensions; all but the last of x when None.
        strides: of the same dimensions, in elements.
    """
    if sizes is None or strides is None:
        sizes, strides = x.shape[:-1], x.stride()[:-1]
    if len(sizes) == 1:  # what nearly every call has
        return x.data_ptr(), 1, 1, strides[0] if sizes[0] != 1 else 0, 0, 0
    merged: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    while len(merged) < 3:  # noqa: PLR2004 - a Rows has three dimensions
        merged.append((1, 0))
    if merged[1][0] == 1:  # one distance: the kernel divides nothing
        return x.data_ptr(), 1, 1, merged[0][1], 0, 0
    (_, first), (size1, second), (size2, third) = merged
    return x.data_ptr(), size1, size2, first, second, third


def aligned(where: Place, number: int) -> bool:
    """Tell whether every row begins at a multiple of 16 bytes."""
    address, _, _, *strides = where
    return address % ACCESS == 0 and all(stride * number % ACCESS == 0 for stride in strides)


@cache
def norm_block(size: int, dtype: str) -> tuple[int, int, int]:
    """Return threads along a row, rows of a block, and packs that a thread keeps, for rows of a size."""
    packs = -(-size * SIZES[dtype] // ACCESS)
    if packs <= 4 * WARP:
        return WARP, ROWS_A_BLOCK, _kept(packs, WARP)
    threads = min(MOST_THREADS, -(-packs // (2 * WARP)) * WARP)
    return threads, 1, _kept(packs, threads)


def _kept(packs: int, threads: int) -> int:
    """Return how many packs each thread keeps; 0 where they are too many."""
    return next((kept for kept in variants.KEPT if kept * threads >= packs), 0)


def norm_arguments(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
    out: Tensor,
    residual_out: Tensor | None,
) -> tuple[bytes, bool, int]:
    """Return the `NormArguments` of a call, whether everything is aligned to 16 bytes, and the number of rows.

    Raises:
        ValueError: the residual has other leading sizes than x.
    """
    if residual is not None and residual.shape != x.shape:
        msg = f"{op}: x_residual is of shape {tuple(residual.shape)}, wanted {tuple(x.shape)}, the shape of x"
        raise ValueError(msg)
    size = x.shape[-1]
    number = SIZES[dtype_name(x.dtype)]
    rows = x.numel() // size if size else 0
    x_place = place(x)
    residual_place = x_place if residual is None else place(residual)
    out_address = out.data_ptr()
    residual_address = 0 if residual_out is None else residual_out.data_ptr()
    weight_address = 0 if weight is None else weight.data_ptr()
    wide = (
        size * number % ACCESS == 0
        and (out_address | residual_address | weight_address) % ACCESS == 0
        and aligned(x_place, number)
        and (residual is None or aligned(residual_place, number))
    )
    kind = weight_kind(x, weight)
    measured = size if variance_size is None else variance_size
    arguments = NORM.pack(
        *x_place, *residual_place, out_address, residual_address, weight_address, rows, size, measured, kind, epsilon
    )
    return arguments, wide, rows


def weight_kind(x: Tensor, weight: Tensor | None) -> int:
    """Return what the sources call a weight: none, of x's dtype, or float32."""
    return 0 if weight is None else 1 if weight.dtype == x.dtype else 2


def norm(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
    out: Tensor,
    residual_out: Tensor | None,
) -> Launch:
    """Plan `rms_norm` (no residual) or `fused_add_rms_norm` into contiguous outputs, which may be the inputs.

    Raises:
        ValueError: the residual has other leading sizes than x.
    """
    arguments, wide, rows = norm_arguments(op, x, residual, weight, epsilon, variance_size, out, residual_out)
    dtype = dtype_name(x.dtype)
    threads, height, kept = norm_block(x.shape[-1], dtype)
    expression = variants.norm(op, dtype, aligned=wide, kept=kept)
    return Launch(variants.program("norm", dtype), expression, -(-rows // height), (threads, height), arguments)


@cache
def gate_block(size: int, dtype: str) -> tuple[int, int, int]:
    """Return threads along a row, rows of a block, and blocks along a row, for halves of a size."""
    packs = -(-size * SIZES[dtype] // ACCESS)
    threads = 1
    while threads < min(GATE_THREADS, -(-packs // PACKS_A_THREAD)):
        threads *= 2
    return threads, GATE_THREADS // threads, -(-packs // (threads * PACKS_A_THREAD))


def gate(activation: str, x: Tensor, out: Tensor) -> Launch:
    """Plan a gated activation (`SILU`, `GELU`, `GELU_TANH`) into a contiguous output."""
    dtype, size = dtype_name(x.dtype), x.shape[-1] // 2
    number = SIZES[dtype]
    rows = x.numel() // (2 * size) if size else 0
    where = place(x)
    wide = size * number % ACCESS == 0 and out.data_ptr() % ACCESS == 0 and aligned(where, number)
    threads, height, columns = gate_block(size, dtype)
    arguments = GATE.pack(*where, out.data_ptr(), rows, size, columns)
    expression = variants.gate(activation, dtype, aligned=wide)
    return Launch(
        variants.program("gate", dtype), expression, -(-rows // height) * columns, (threads, height), arguments
    )


@cache
def group_block(size: int, dtype: str) -> tuple[int, int, int]:
    """Return threads of a group, groups of a block, and packs that a thread keeps: one, or none of several."""
    packs = -(-size * SIZES[dtype] // ACCESS)
    lanes = 1
    while lanes < min(WARP, packs):
        lanes *= 2
    return lanes, GROUP_THREADS // lanes, int(packs <= lanes)
