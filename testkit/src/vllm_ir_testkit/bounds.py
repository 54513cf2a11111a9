"""How far from native is too far: the contract on numerics as one function and three numbers.

bfloat16, float16 and float8: at most one element in ten thousand, by one unit in the last place; none at all where the
op's tolerance for the dtype is zero. float32 and float64: within the op's tolerance. Integers: equal. NaN, infinities
and the sign of zero: as native.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch
    from vllm_ir import IrOp

    from vllm_ir_testkit.distance import Comparison

SHARE: Final = 1e-4
"""The share of elements that may differ in a narrow dtype."""

UNITS: Final = 1
"""By how many units in the last place they may differ."""

_SMALLEST: Final = 2.0**-149
"""The smallest float32; what is this small has no relative precision."""


@dataclass(slots=True)
class Total:
    """What all results of one dtype amount to.

    Attributes:
        elements: how many were compared.
        differing: how many differ.
        worst_units: by how many units at most.
    """

    elements: int = 0
    differing: int = 0
    worst_units: int = 0

    def add(self, comparison: Comparison) -> None:
        """Count one more result."""
        self.elements += comparison.elements
        self.differing += comparison.differing
        self.worst_units = max(self.worst_units, comparison.worst_units)

    @property
    def share(self) -> float:
        """The share of elements that differ."""
        return self.differing / self.elements if self.elements else 0.0


def is_narrow(dtype: torch.dtype) -> bool:
    """Tell whether a dtype is held to bits and not to a tolerance."""
    return dtype.is_floating_point and dtype.itemsize <= 2  # noqa: PLR2004 - bytes of a half


def is_exact(op: IrOp, dtype: torch.dtype) -> bool:
    """Tell whether an op admits no difference at all in results of a dtype."""
    if not dtype.is_floating_point:
        return True
    found = op.get_tolerance(dtype)
    return found["atol"] == 0 and found["rtol"] == 0


def tolerance(op: IrOp, dtype: torch.dtype, *, tiny: bool) -> tuple[float, float]:
    """Return absolute and relative tolerance for a wide dtype.

    Args:
        op: whose tolerance holds.
        dtype: of the result.
        tiny: whether the inputs are so small that any absolute tolerance would hide everything.
    """
    if is_narrow(dtype) or not dtype.is_floating_point:
        return 0.0, 0.0
    found = op.get_tolerance(dtype)
    return (min(4 * _SMALLEST, found["atol"]) if tiny else found["atol"]), found["rtol"]


def complaint(comparison: Comparison, dtype: torch.dtype, *, exact: bool = False) -> str | None:
    """Return in words why one result is too far from native's, or None.

    A small result may hold the one element in ten thousand, so each may have one; `total_complaint` judges the share.

    Args:
        comparison: how far it is.
        dtype: of the result.
        exact: whether the op admits no difference.
    """
    where = f" ({comparison.example})" if comparison.example else ""
    if comparison.special:
        return (
            f"{comparison.special} of {comparison.elements} elements are NaN or infinite where native's are not{where}"
        )
    if comparison.zero_signs:
        return f"{comparison.zero_signs} of {comparison.elements} zeros have another sign than native's"
    if exact and comparison.differing:
        return (
            f"{comparison.differing} of {comparison.elements} elements differ by up to {comparison.worst_units} units"
            f" in the last place, and the op is exact{where}"
        )
    if is_narrow(dtype):
        return _narrow_complaint(comparison, where)
    if not comparison.beyond:
        return None
    return f"{comparison.beyond} of {comparison.elements} elements are beyond the tolerance{where}"


def _narrow_complaint(comparison: Comparison, where: str) -> str | None:
    """Return in words why a result of a narrow dtype differs too far or too often, or None."""
    if comparison.worst_units > UNITS:
        return (
            f"{comparison.differing} of {comparison.elements} elements differ by up to {comparison.worst_units} units"
            f" in the last place, allowed is {UNITS}{where}"
        )
    if comparison.differing > 1 + comparison.elements * SHARE:
        return (
            f"{comparison.differing} of {comparison.elements} elements differ by one unit in the last place,"
            f" allowed is one in {1 / SHARE:,.0f}{where}"
        )
    return None


def total_complaint(total: Total, dtype: torch.dtype) -> str | None:
    """Return in words why all results of a narrow dtype together differ too often, or None."""
    if not is_narrow(dtype) or total.differing <= 1 or total.share <= SHARE:
        return None
    return (
        f"{total.differing} of {total.elements} elements of all cases differ, one in {1 / total.share:,.0f};"
        f" allowed is one in {1 / SHARE:,.0f}"
    )
