"""Whether two tensors in one piece of memory have an element in common, told from their strides.

Parts of one tensor are its columns or its rows: query, key and value of a packed projection have no element in common,
though they lie in the same memory. Sizes that are open are taken as they were when the graph was traced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vllm_ir.compile import torch_sizes

if TYPE_CHECKING:
    import torch


class _Bytes(NamedTuple):
    """Which bytes a tensor takes: where the first element is, and by what size and distance it repeats."""

    start: int
    item: int
    dims: tuple[tuple[int, int], ...]


def overlapping(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors in the same memory may have a byte in common.

    Where a size is not known at all the answer is no: what comes of it must then be safe either way.
    """
    mine, theirs = _read(one), _read(other)
    if mine is None or theirs is None:
        return False
    # Once as they lie, then as columns of what repeats at each distance that one of them has.
    periods = {distance for _, distance in (*mine.dims, *theirs.dims)}
    return not any(_apart(mine, theirs, period) for period in (None, *periods))


def _read(tensor: torch.Tensor) -> _Bytes | None:
    """Return what bytes a tensor takes; None where that is not known, or none."""
    item = tensor.element_size()
    sizes, strides = _hints(tensor.shape), _hints(tensor.stride())
    offset = torch_sizes.hint_of(tensor.storage_offset())
    if sizes is None or strides is None or offset is None or 0 in sizes:
        return None
    dims = tuple((size, stride * item) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride)
    return _Bytes(offset * item, item, dims)


def _hints(values: Any) -> list[int] | None:
    """Return whole numbers as they were when the graph was traced; None where one of them is not known."""
    found = [torch_sizes.hint_of(value) for value in values]
    known = [value for value in found if value is not None]
    return known if len(known) == len(found) else None


def _apart(one: _Bytes, other: _Bytes, period: int | None) -> bool:
    """Tell whether two tensors take different bytes of every period, neither reaching into the next."""
    spans = []
    for each in (one, other):
        inner = [(size, distance) for size, distance in each.dims if period is None or distance % period]
        first = each.start if period is None else each.start % period
        last = first + sum((size - 1) * distance for size, distance in inner) + each.item - 1
        if period is not None and last >= period:
            return False
        spans.append((first, last))
    (start, end), (begin, stop) = spans
    return end < begin or stop < start
