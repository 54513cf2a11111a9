"""Values that a kernel meets rarely and has to treat as native does.

Which tensors of a call are filled so is left to `cases`; every fill draws from torch's generator only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def normal(x: Tensor) -> Tensor:
    """Return the values as the op's generator made them."""
    return x


def wide(x: Tensor) -> Tensor:
    """Return values thirty times as large, so that an exponential saturates on both sides."""
    return x * 30


def nan(x: Tensor) -> Tensor:
    """Return a NaN in the middle of the first row; the other rows stay as they are."""
    return _planted(x, (float("nan"),))


def infinite(x: Tensor) -> Tensor:
    """Return both infinities in the first row and one in the last."""
    filled = _planted(x, (float("inf"), float("-inf")))
    if x.dim() > 1 and x.shape[0] > 1 and x.shape[-1]:
        filled[-1, ..., -1] = float("inf")
    return filled


def subnormal(x: Tensor) -> Tensor:
    """Return the smallest numbers of the dtype, with both signs: what flushes to zero shows."""
    smallest = torch.finfo(x.dtype).smallest_normal
    steps = torch.randint(1, 120, x.shape, device=x.device)
    return (x.sign().double() * steps * (smallest / 128)).to(x.dtype)


def negative_zero(x: Tensor) -> Tensor:
    """Return -0.0 in every second element and +0.0 in the others."""
    zeros = torch.zeros_like(x, memory_format=torch.contiguous_format)
    zeros[..., ::2] = -0.0
    return zeros


def boundary(x: Tensor) -> Tensor:
    """Return numbers with full mantissas, and halves of a unit between, so that sums lie midway between neighbours.

    Their squares have few bits, so a sum of squares is exact in any order: what then differs is a rounding.
    """
    digits = {torch.bfloat16: 7, torch.float16: 10}.get(x.dtype, 10)
    unit = 2.0**-digits
    full = 1 + unit * torch.randint(0, 2 ** min(digits, 7), x.shape, device=x.device)
    half = unit * torch.tensor([0.5, 1.5, 2.5], device=x.device)[torch.randint(0, 3, x.shape, device=x.device)]
    chosen = torch.where(torch.rand(x.shape, device=x.device) < 0.5, full, half)  # noqa: PLR2004 - half of each
    return (chosen * torch.where(x < 0, -1.0, 1.0)).to(x.dtype)


def _planted(x: Tensor, values: tuple[float, ...]) -> Tensor:
    """Return a copy with values from the middle of the first row on."""
    filled = x.clone()
    row = filled[0] if filled.dim() > 1 and filled.shape[0] else filled
    middle = row.shape[-1] // 2 if row.dim() else 0
    for offset, value in enumerate(values):
        if row.numel() and middle + offset < row.shape[-1]:
            row[..., middle + offset] = value
    return filled


FILLS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "normal": normal,
    "wide": wide,
    "nan": nan,
    "infinite": infinite,
    "subnormal": subnormal,
    "negative_zero": negative_zero,
    "boundary": boundary,
}
"""Fills by name; the first is the plain one."""


def ties(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values midway between neighbours of a narrower dtype: round to even or be seen.

    Args:
        weight: a float32 tensor, whose shape is taken.
        dtype: the narrower dtype, bfloat16 or float16.
    """
    digits = {torch.bfloat16: 7, torch.float16: 10}[dtype]
    steps = torch.randint(0, 2**digits, weight.shape, device=weight.device)
    return 1 + 2.0**-digits * steps + 2.0 ** -(digits + 1)
