"""From the sizes, strides and addresses of a call to what is launched: variant, number of programs and arguments.

Nothing is run here, and no tensor's memory is read, so that tests plan the same launches for an interpreter. What is
`fixed` is launched by the size of a row alone, and sums a row in one order.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from vllm_ir_provider_triton import configuration
from vllm_ir_provider_triton.variants import ACCESS, SIZES, Launch, Variant

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

Place = tuple[int, int, int, int, int]
"""Where rows lie: stride0, size1, size2, stride1, stride2 of [.., size1, size2], in elements."""


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without the module."""
    return str(dtype).removeprefix("torch.")


def place(sizes: Sequence[int], strides: Sequence[int]) -> Place:
    """Return where rows lie: leading dimensions as few as they can be, at most three.

    Args:
        sizes: of the leading dimensions.
        strides: of the same dimensions, in elements.
    """
    if len(sizes) == 1:  # what nearly every call has
        return strides[0] if sizes[0] != 1 else 0, 1, 1, 0, 0
    merged: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == stride * size:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    while len(merged) < 3:  # noqa: PLR2004 - a program knows three dimensions
        merged.append((1, 0))
    if merged[1][0] == 1:  # one distance: the kernel divides nothing
        return merged[0][1], 1, 1, 0, 0
    (_, first), (size1, second), (size2, third) = merged
    return first, size1, size2, second, third


def rows_of(x: Tensor) -> Place:
    """Return where the rows of a tensor lie."""
    return place(x.shape[:-1], x.stride()[:-1])


def one_stride(where: Place) -> bool:
    """Tell whether rows lie at one distance."""
    return where[1] == where[2] == 1


def norm(
    op: str,
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None,
    out: Tensor,
    residual_out: Tensor | None,
    arch: str,
    *,
    fixed: bool,
) -> Launch:
    """Plan `rms_norm` (no residual) or `fused_add_rms_norm` into contiguous outputs, which may be the inputs.

    Raises:
        ValueError: the residual has other leading sizes than x.
    """
    if residual is not None and residual.shape != x.shape:
        msg = f"{op}: x_residual is of shape {tuple(residual.shape)}, wanted {tuple(x.shape)}, the shape of x"
        raise ValueError(msg)
    dtype, size = dtype_name(x.dtype), x.shape[-1]
    number = SIZES[dtype]
    rows = x.numel() // size if size else 0
    where = rows_of(x)
    residual_where = where if residual is None else rows_of(residual)
    # What is not there is never read; any pointer stands for it.
    tensors = (
        out,
        out if residual_out is None else residual_out,
        x,
        x if residual is None else residual,
        x if weight is None else weight,
    )
    a, b, c, d, e = addresses = tuple([each.data_ptr() for each in tensors])
    strides = where[0] | where[3] | where[4] | residual_where[0] | residual_where[3] | residual_where[4] | size
    measured = size if variance_size is None else variance_size
    shape = configuration.choose(
        "norm" if residual is None else "fused", arch, size, number, few=not fixed and rows <= configuration.FEW
    )
    simple = one_stride(where) and one_stride(residual_where)
    constants = (
        residual is not None,
        weight is not None,
        simple,
        size > shape.block,
        shape.block.bit_length() - 1 if fixed else 0,
        shape.rows,
        shape.block,
    )
    variant = Variant(
        "norm",
        (dtype, dtype, dtype, dtype, dtype_name(tensors[4].dtype)),
        constants,
        not ((a | b | c | d | e) % ACCESS or strides * number % ACCESS),
        shape.warps,
    )
    numbers = (where[0], residual_where[0], size, measured, rows, *where[1:], *residual_where[1:], epsilon)
    return Launch(variant, -(-rows // shape.rows), tensors, addresses, numbers)


def gate(activation: int, x: Tensor, out: Tensor, arch: str, *, fixed: bool) -> Launch:
    """Plan a gated activation into a contiguous output."""
    dtype, size = dtype_name(x.dtype), x.shape[-1] // 2
    number = SIZES[dtype]
    rows = x.numel() // (2 * size) if size else 0
    where = rows_of(x)
    shape = configuration.choose("gate", arch, size, number, few=not fixed and rows <= configuration.FEW)
    columns = -(-size // shape.block)
    addresses = (out.data_ptr(), x.data_ptr())
    variant = Variant(
        "gate",
        (dtype, dtype),
        (activation, one_stride(where), shape.rows, shape.block),
        not ((addresses[0] | addresses[1]) % ACCESS or (where[0] | where[3] | where[4] | size) * number % ACCESS),
        shape.warps,
    )
    numbers = (where[0], size, rows, columns, *where[1:])
    return Launch(variant, -(-rows // shape.rows) * columns, (out, x), addresses, numbers)
