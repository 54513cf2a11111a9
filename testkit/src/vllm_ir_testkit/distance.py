"""How far a result is from native's: in units of the last place, in elements that differ, in places that are special.

What is too far is judged by `bounds`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch import Tensor

_INTEGERS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

FAR: Final = 2**31
"""Units between numbers that no number of units connects: NaN or an infinity on one side only."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One result held against native's.

    Attributes:
        elements: how many there are.
        differing: how many have another value; -0.0 counts as +0.0 here, and a NaN equals any NaN.
        worst_units: the largest distance in units of the last place of the dtype.
        worst_error: the largest absolute difference between finite values.
        beyond: how many are outside the tolerance, if one was given.
        special: how many are NaN or infinite on one side only, or infinite with another sign.
        zero_signs: how many are zero on both sides with another sign.
        example: the worst element in words; empty where all are equal.
    """

    elements: int
    differing: int = 0
    worst_units: int = 0
    worst_error: float = 0.0
    beyond: int = 0
    special: int = 0
    zero_signs: int = 0
    example: str = ""

    @property
    def share(self) -> float:
        """The share of elements that differ."""
        return self.differing / self.elements if self.elements else 0.0


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors of one dtype have the same bits, NaN and the sign of zero included."""
    kind = _INTEGERS[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


def ordered(x: Tensor) -> Tensor:
    """Return the numbers of a floating-point tensor as int64 that count upwards in units of the last place.

    Both zeros are 0, and neighbours differ by 1.
    """
    bits = x.contiguous().view(_INTEGERS[x.element_size()]).to(torch.int64)
    magnitude = bits & (2 ** (8 * x.element_size() - 1) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


def compare(got: Tensor, wanted: Tensor, atol: float = 0.0, rtol: float = 0.0) -> Comparison:
    """Return how far one tensor is from another of the same shape and dtype.

    Args:
        got: of any floating-point or integer dtype.
        wanted: likewise.
        atol: absolute tolerance, for `beyond`.
        rtol: relative tolerance, for `beyond`.
    """
    if not got.numel():
        return Comparison(0)
    if same_bits(got, wanted):
        return Comparison(got.numel())
    if not got.is_floating_point():
        unequal = got != wanted
        units = (got.to(torch.int64) - wanted.to(torch.int64)).abs()
        return _summary(got, wanted, unequal, units, unequal, torch.zeros_like(unequal))
    a, b = (x.double() for x in (got, wanted))
    both_nan = a.isnan() & b.isnan()
    special = ((~a.isfinite() | ~b.isfinite()) & (a != b)) & ~both_nan
    units = (ordered(got) - ordered(wanted)).abs()
    units = torch.where(both_nan, 0, torch.where(special, FAR, units))
    near = (a - b).abs() <= atol + rtol * b.abs()
    beyond = ~near & (units > 0) & ~special
    zero_signs = (a == 0) & (b == 0) & (a.signbit() != b.signbit())
    return _summary(got, wanted, units > 0, units, beyond, zero_signs, special)


def _summary(
    got: Tensor,
    wanted: Tensor,
    unequal: Tensor,
    units: Tensor,
    beyond: Tensor,
    zero_signs: Tensor,
    special: Tensor | None = None,
) -> Comparison:
    """Return the counts of what was found."""
    worst = int(units.reshape(-1).argmax())
    error = (got.double() - wanted.double()).abs().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
    example = ""
    if bool(unequal.any()):
        example = f"at {list(place)}: {got[place].item()!r}, native {wanted[place].item()!r}"
    return Comparison(
        elements=got.numel(),
        differing=int(unequal.sum()),
        worst_units=int(units.max()),
        worst_error=float(error.max()),
        beyond=int(beyond.sum()),
        special=0 if special is None else int(special.sum()),
        zero_signs=int(zero_signs.sum()),
        example=example,
    )
