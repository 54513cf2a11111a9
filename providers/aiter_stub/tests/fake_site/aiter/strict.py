"""What the kernels trust and do not check: types, dtypes, devices, layouts; and how they round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CALLS: list[tuple[str, tuple[Any, ...]]] = []
"""Every call that was made: the function and its arguments."""

MOST_BYTES = 2**31


def demand(holds: bool, what: str) -> None:
    """Raise where the real kernel would read or write what it must not, or would not be launched."""
    if not holds:
        msg = f"AITER cannot be given this: {what}"
        raise AssertionError(msg)


def plain(function: str, **wanted: tuple[Any, type]) -> None:
    """Demand that arguments are of exactly these types, and write the call down."""
    for name, (value, kind) in wanted.items():
        demand(type(value) is kind, f"{function}: {name} is {type(value).__name__}, wanted {kind.__name__}")
    CALLS.append((function, tuple(value for value, _ in wanted.values())))


def alike(first: Tensor, *others: Tensor) -> None:
    """Demand one 16-bit dtype and one device."""
    demand(first.dtype in (torch.bfloat16, torch.float16), f"dtype {first.dtype}")
    for each in others:
        demand(each.dtype == first.dtype, f"dtypes {first.dtype} and {each.dtype}")
        demand(each.device == first.device, f"devices {first.device} and {each.device}")


def matrix(x: Tensor, columns: int) -> None:
    """Demand a matrix with rows, whose elements are adjacent and whose bytes fit into 32 bits."""
    demand(x.dim() == 2 and x.shape[-1] == columns, f"shape {tuple(x.shape)}")
    demand(x.shape[0] > 0, "no rows: a grid without blocks")
    demand(x.stride(1) == 1 or columns == 1, f"strides {x.stride()}")
    demand(x.shape[0] * x.stride(0) * x.element_size() <= MOST_BYTES or x.shape[0] == 1, "more than 2 GiB")


def apart(result: Tensor, *others: Tensor) -> None:
    """Demand that a result shares no memory with what is read, since a kernel may read it again."""
    for each in others:
        demand(result.untyped_storage().data_ptr() != each.untyped_storage().data_ptr(), "results over inputs")


def flushed(x: Tensor) -> Tensor:
    """Return float32 values as AITER's compiler flags have arithmetic read and leave them: subnormal ones are zero."""
    return torch.where(x.abs() < torch.finfo(torch.float32).smallest_normal, x * 0, x)


def widened(x: Tensor) -> Tensor:
    """Return values in float32, as arithmetic reads them."""
    return flushed(x.float())


def nearest(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values rounded to nearest."""
    return x.to(dtype)


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values as AITER's plain conversion leaves them: bfloat16 cut off, float16 to nearest."""
    if dtype != torch.bfloat16:
        return x.to(dtype)
    return (x.view(torch.int32) & -65536).view(torch.float32).to(dtype)
