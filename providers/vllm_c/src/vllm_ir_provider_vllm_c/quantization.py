"""The launches of everything that is quantised to 8-bit floating point: rows, gated rows, and normalised rows.

What is shared with the other ops is in `geometry`; blocks are chosen as there, by the size of a row or a group alone.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from vllm_ir_provider_vllm_c import geometry, variants
from vllm_ir_provider_vllm_c.geometry import (
    MOST_THREADS,
    WARP,
    Launch,
    aligned,
    dtype_name,
    gate_block,
    group_block,
    norm_block,
    place,
)
from vllm_ir_provider_vllm_c.variants import ACCESS, SIZES

if TYPE_CHECKING:
    from torch import Tensor

    from vllm_ir_provider_vllm_c.geometry import Place

SCALING: Final = struct.Struct("=QQffii")
QUANT: Final = struct.Struct("=Q5qQQQffiiqqqiiiii4x")

LIMITS: Final = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
"""The largest magnitude of each dtype that a kernel quantises to."""

FORMATS: Final = {torch.float8_e4m3fn: 0, torch.float8_e5m2: 1}
"""What the sources call them."""

STEPS: Final = 512.0
"""A scale is at least one over so many times the limit."""

LEAST_PEAK: Final = 1e-10
"""What the largest magnitude of a group counts for at least."""

GIVEN: Final = 0
FOUND: Final = 1
MEASURED: Final = 2
"""Where a scale comes from, as the sources have it."""


class Scaling(NamedTuple):
    """What a kernel is told about scales.

    Args:
        dtype: what is quantised to.
        scale: float32, contiguous: what is read if it is given, what is written if not.
        kind: GIVEN, FOUND or MEASURED.
        bound: float32, one value: what the largest magnitude counts for at most; None for no bound.
    """

    dtype: torch.dtype
    scale: Tensor
    kind: int = GIVEN
    bound: Tensor | None = None

    def pack(self, least: float | None = None) -> tuple[int, int, float, float, int, int]:
        """Return a `Scaling` of the sources; `least` is that of a row's scale when None."""
        limit = LIMITS[self.dtype]
        return (
            self.scale.data_ptr(),
            0 if self.bound is None else self.bound.data_ptr(),
            limit,
            1.0 / (limit * STEPS) if least is None else least,
            FORMATS[self.dtype],
            self.kind,
        )


def row_size(x: Tensor, *, gated: bool) -> int:
    """Return the elements of a row of what is quantised: half a row of x where it is gated."""
    return x.shape[-1] // 2 if gated else x.shape[-1]


def wide(x: Tensor, size: int, *others: Tensor | None) -> bool:
    """Tell whether rows of x are read 16 bytes at a time: they, results of such rows and other tensors begin so."""
    number = SIZES[dtype_name(x.dtype)]
    return (
        size * number % ACCESS == 0
        and all(each is None or each.data_ptr() % ACCESS == 0 for each in others)
        and aligned(place(x), number)
    )


def packed(
    where: Place,
    out: Tensor,
    scaling: Scaling,
    rows: int,
    size: int,
    *,
    least: float | None = None,
    steps: tuple[int, int] = (0, 0),
    per_channel: int = 0,
    columns: int = 0,
    group_size: int = 0,
    power_of_two: int = 0,
) -> bytes:
    """Return a `QuantArguments` of the sources.

    Args:
        where: the rows that are read.
        out: what is written.
        scaling: what is told about scales.
        rows: how many there are.
        size: of a row of the result.
        least: as `Scaling.pack` has it.
        steps: from scale to scale, of rows and of groups.
        per_channel: 1 where a scale is given for each element of a row.
        columns: blocks along a row, or groups of a row.
        group_size: elements of a group.
        power_of_two: 1 where scales of groups are rounded up to one.
    """
    told = scaling.pack(least)
    return QUANT.pack(*where, out.data_ptr(), *told, rows, *steps, size, per_channel, columns, group_size, power_of_two)


def static(x: Tensor, scaling: Scaling, out: Tensor, *, gated: bool) -> Launch:
    """Plan a quantisation with a given scale: of one value, or one for each element of a row that is not gated."""
    dtype, size = dtype_name(x.dtype), row_size(x, gated=gated)
    count = out.numel() // size if size else 0
    per_channel = scaling.scale.numel() != 1
    threads, height, columns = gate_block(size, dtype)
    flag = wide(x, size, out, scaling.scale if per_channel else None)
    arguments = packed(place(x), out, scaling, count, size, per_channel=int(per_channel), columns=columns)
    expression = variants.static_quant(dtype, gated=gated, aligned=flag)
    blocks = -(-count // height) * columns
    return Launch(variants.program("quant", dtype), expression, blocks, (threads, height), arguments)


def kept_packs(size: int, dtype: str, *, aligned: bool) -> tuple[int, int, int]:
    """Return threads along a row, rows of a block and packs that a thread keeps; none where they are not aligned."""
    threads, height, kept = norm_block(size, dtype)
    return threads, height, kept if aligned else 0


def rows(x: Tensor, scaling: Scaling, out: Tensor, *, gated: bool) -> Launch:
    """Plan a quantisation with a scale for each row, or, for a scale that is measured, the magnitudes alone."""
    dtype, size = dtype_name(x.dtype), row_size(x, gated=gated)
    count = out.numel() // size
    flag = wide(x, size, out)
    threads, height, kept = kept_packs(size, dtype, aligned=flag)
    expression = variants.quant("row", dtype, gated=gated, aligned=flag, kept=kept)
    arguments = packed(place(x), out, scaling, count, size)
    return Launch(variants.program("quant", dtype), expression, -(-count // height), (threads, height), arguments)


def groups(
    x: Tensor, scaling: Scaling, out: Tensor, group_size: int, *, gated: bool, power_of_two: bool, column_major: bool
) -> Launch:
    """Plan a quantisation with a scale for each group of a row.

    Args:
        x: what is read.
        scaling: whose scale is [..., groups], contiguous, or with the tokens next to each other.
        out: what is written.
        group_size: elements of a group.
        gated: whether silu and the multiply come first.
        power_of_two: whether scales are rounded up to one.
        column_major: whether the tokens are next to each other in `scaling.scale`.
    """
    dtype, size = dtype_name(x.dtype), row_size(x, gated=gated)
    columns = size // group_size
    count = out.numel() // size if size else 0
    flag = wide(x, size, out) and group_size * SIZES[dtype] % ACCESS == 0
    lanes, height, kept = group_block(group_size, dtype)
    arguments = packed(
        place(x),
        out,
        scaling,
        count,
        size,
        least=LEAST_PEAK,
        steps=(1, count) if column_major else (columns, 1),
        columns=columns,
        group_size=group_size,
        power_of_two=int(power_of_two),
    )
    expression = variants.quant("group", dtype, gated=gated, aligned=flag, kept=kept if flag else 0)
    blocks = -(-count * columns // height)
    return Launch(variants.program("quant", dtype), expression, blocks, (lanes, height), arguments)


def tensor_scale(dtype: str, magnitudes: Tensor, scaling: Scaling) -> Launch:
    """Plan the scale of a tensor from the magnitudes of its rows, of which there may be none."""
    count = magnitudes.numel()
    threads = min(MOST_THREADS, max(WARP, -(-count // WARP) * WARP))
    where = magnitudes.data_ptr(), 1, 1, 1, 0, 0
    arguments = packed(where, magnitudes, scaling, count, 1)
    return Launch(variants.program("quant", dtype), variants.TENSOR_SCALE, 1, (threads, 1), arguments)


def norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    scaling: Scaling,
    out: Tensor,
    residual_out: Tensor | None,
) -> Launch:
    """Plan a norm whose result is quantised, into new contiguous outputs, or a sum into the residual itself.

    Raises:
        ValueError: the residual has other leading sizes than x.
    """
    op = "rms_norm" if residual is None else "fused_add_rms_norm"
    packed, flag, count = geometry.norm_arguments(op, x, residual, weight, epsilon, None, out, residual_out)
    dtype = dtype_name(x.dtype)
    threads, height, kept = kept_packs(x.shape[-1], dtype, aligned=flag)
    expression = variants.norm_quant(op, dtype, aligned=flag, kept=kept)
    arguments = packed + SCALING.pack(*scaling.pack())
    return Launch(variants.program("norm_quant", dtype), expression, -(-count // height), (threads, height), arguments)
