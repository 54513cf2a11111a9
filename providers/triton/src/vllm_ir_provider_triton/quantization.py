"""The launches of the quantising programs: of rows, of groups, and of rows that are normalised first.

What is shared with the other ops is in `geometry`. A launch goes by the size of a row alone, and a float32 sum is made
in one order, so that both providers have these launches in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir_provider_triton import configuration
from vllm_ir_provider_triton.geometry import dtype_name, one_stride, rows_of
from vllm_ir_provider_triton.variants import ACCESS, LIMITS, SIZES, Launch, Variant

if TYPE_CHECKING:
    from torch import Tensor

LEAST_CAPABILITY = 89
"""From this compute capability on NVIDIA's GPUs have instructions for e4m3fn and e5m2, which saturate and keep NaN."""


def instruction(arch: str, dtype: str) -> bool:
    """Tell whether an architecture rounds to a format by an instruction; elsewhere its bits are made by integers."""
    return dtype != "float8_e4m3fnuz" and arch.startswith("sm_") and int(arch[3:]) >= LEAST_CAPABILITY


def aligned(addresses: tuple[int, ...], steps: int, number: int) -> bool:
    """Tell whether pointers and steps are multiples of an access.

    Args:
        addresses: the pointers.
        steps: strides and sizes in elements, their bits in one number.
        number: bytes of an element.
    """
    bits = 0
    for address in addresses:
        bits |= address
    return not (bits % ACCESS or steps * number % ACCESS)


def peak(x: Tensor, largest: Tensor, arch: str, *, gated: bool) -> Launch:
    """Plan the search for the largest magnitude of rows, or of silu(gate) * up of them; `largest` is one int32."""
    dtype, size = dtype_name(x.dtype), x.shape[-1] // (1 + gated)
    number = SIZES[dtype]
    rows = x.numel() // x.shape[-1]
    where = rows_of(x)
    shape = configuration.choose("grouped", arch, size, number, few=False)
    addresses = (x.data_ptr(), largest.data_ptr())
    constants = (gated, one_stride(where), shape.rows, shape.block)
    wide = aligned(addresses[:1], where[0] | where[3] | where[4] | size, number)
    variant = Variant("peak", (dtype, "int32"), constants, wide, shape.warps)
    return Launch(variant, -(-rows // shape.rows), (x, largest), addresses, (where[0], size, rows, *where[1:]))


def scaled(
    x: Tensor,
    out: Tensor,
    scale: Tensor,
    arch: str,
    *,
    gated: bool,
    scale_out: Tensor | None = None,
    bound: Tensor | None = None,
) -> Launch:
    """Plan the quantisation of rows, or of silu(gate) * up of them, by one scale or one for each column.

    Args:
        x: the rows.
        out: contiguous, as large as x or as its halves.
        scale: one value or one for each column; with a `scale_out` what `peak` has found.
        arch: such as "sm_90".
        gated: whether x holds gate and up.
        scale_out: where the scale of what `peak` has found goes.
        bound: one value that the largest counts for at most, or None.
    """
    dtype, written, size = dtype_name(x.dtype), dtype_name(out.dtype), out.shape[-1]
    number = SIZES[dtype]
    rows = out.numel() // size if size else 0
    where = rows_of(x)
    shape = configuration.choose("scaled", arch, size, number, few=False)
    columns = -(-size // shape.block)
    dynamic = scale_out is not None
    tensors = (x, out, scale, scale if scale_out is None else scale_out, scale if bound is None else bound)
    addresses = tuple([each.data_ptr() for each in tensors])
    constants = (
        LIMITS[written],
        instruction(arch, written),
        gated,
        scale.dim() == 1 and scale.shape[0] > 1,
        dynamic,
        bound is not None,
        one_stride(where),
        shape.rows,
        shape.block,
    )
    wide = aligned(addresses[:2], where[0] | where[3] | where[4] | size, number)
    dtypes = (dtype, written, *(dtype_name(each.dtype) for each in tensors[2:]))
    variant = Variant("scaled", dtypes, constants, wide, shape.warps)
    numbers = (where[0], size, rows, columns, *where[1:])
    return Launch(variant, -(-rows // shape.rows) * columns, tensors, addresses, numbers)


def grouped(
    x: Tensor,
    out: Tensor,
    scales: Tensor,
    bound: Tensor | None,
    group_size: int | None,
    arch: str,
    *,
    gated: bool,
    power: bool = False,
    column_major: bool = False,
) -> Launch:
    """Plan the quantisation of rows, or of silu(gate) * up of them, by the largest of each row or of each group.

    Args:
        x: the rows.
        out: contiguous, as large as x or as its halves.
        scales: one a row, contiguous; or [..., groups], contiguous or column-major.
        bound: one value that the largest of a row counts for at most, or None.
        group_size: elements of a group; None for one scale a row.
        arch: such as "sm_90".
        gated: whether x holds gate and up.
        power: whether scales are rounded up to powers of two.
        column_major: whether the scales of one group of all rows lie next to each other.
    """
    dtype, written, width = dtype_name(x.dtype), dtype_name(out.dtype), out.shape[-1]
    number = SIZES[dtype]
    size = width if group_size is None else group_size
    groups = width // size
    pieces = out.numel() // size
    where = rows_of(x)
    shape = configuration.choose("grouped", arch, size, number, few=False)
    tensors = (x, out, scales, scales if bound is None else bound)
    addresses = tuple([each.data_ptr() for each in tensors])
    constants = (
        LIMITS[written],
        instruction(arch, written),
        gated,
        group_size is None,
        bound is not None,
        power,
        one_stride(where),
        size > shape.block,
        shape.rows,
        shape.block,
    )
    wide = aligned(addresses[:2], where[0] | where[3] | where[4] | size, number)
    variant = Variant("grouped", (dtype, written, "float32", "float32"), constants, wide, shape.warps)
    steps = (1, pieces // groups) if column_major else (groups, 1)  # from row to row, from group to group
    numbers = (where[0], size, pieces, groups, *steps, *where[1:])
    return Launch(variant, -(-pieces // shape.rows), tensors, addresses, numbers)


def norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    out: Tensor,
    residual_out: Tensor | None,
    scales: Tensor,
    bound: Tensor | None,
    arch: str,
    *,
    dynamic: bool,
) -> Launch:
    """Plan the normalisation of rows, or of their sum with a residual, and quantisation into contiguous outputs.

    Args:
        x: the rows.
        residual: of x's shape, or None.
        weight: one value an element of a row, or None.
        epsilon: added to the mean of squares.
        out: of x's shape.
        residual_out: where the sums go, which may be the residual; None without one.
        scales: one value that is given, or where one a row goes.
        bound: one value that the largest of a row counts for at most, or None.
        arch: such as "sm_90".
        dynamic: whether scales are results.

    Raises:
        ValueError: the residual has other leading sizes than x.
    """
    if residual is not None and residual.shape != x.shape:
        msg = f"x_residual is of shape {tuple(residual.shape)}, wanted {tuple(x.shape)}, the shape of x"
        raise ValueError(msg)
    dtype, written, size = dtype_name(x.dtype), dtype_name(out.dtype), x.shape[-1]
    number = SIZES[dtype]
    rows = x.numel() // size if size else 0
    where = rows_of(x)
    residual_where = where if residual is None else rows_of(residual)
    # What is not there is never read; any pointer of its kind stands for it.
    tensors = (
        x,
        out,
        x if residual_out is None else residual_out,
        x if residual is None else residual,
        x if weight is None else weight,
        scales,
        scales if bound is None else bound,
    )
    addresses = tuple([each.data_ptr() for each in tensors])
    steps = where[0] | where[3] | where[4] | residual_where[0] | residual_where[3] | residual_where[4] | size
    shape = configuration.choose("norm_quant" if residual is None else "fused_quant", arch, size, number, few=False)
    constants = (
        LIMITS[written],
        instruction(arch, written),
        residual is not None,
        weight is not None,
        dynamic,
        bound is not None,
        one_stride(where) and one_stride(residual_where),
        shape.block.bit_length() - 1,
        shape.rows,
        shape.block,
    )
    dtypes = (dtype, written, dtype, dtype, dtype_name(tensors[4].dtype), "float32", "float32")
    variant = Variant("norm_quant", dtypes, constants, aligned(addresses[:5], steps, number), shape.warps)
    numbers = (where[0], residual_where[0], size, rows, *where[1:], *residual_where[1:], epsilon)
    return Launch(variant, -(-rows // shape.rows), tensors, addresses, numbers)
