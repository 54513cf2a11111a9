"""How far an implementation may be from native, by dtype, where an op does not say otherwise.

The contract for bfloat16 and float16 is stricter than these bounds (one element in ten thousand, by one unit in the
last place) and is judged by conformance; these bounds are for `torch.testing.assert_close` in everyday tests.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch


def comparable(values: torch.Tensor) -> torch.Tensor:
    """Return values that `torch.testing.assert_close` takes with bounds.

    It takes 8-bit floats bit for bit alone; float32 holds each of them exactly.
    """
    return values.float() if values.is_floating_point() and values.element_size() == 1 else values


class Tolerance(TypedDict):
    """Bounds as `torch.testing.assert_close` takes them, for 8-bit floats once `comparable` has widened them."""

    atol: float
    rtol: float


@functools.cache
def default_tolerances() -> dict[torch.dtype, Tolerance]:
    """Return the bounds by dtype.

    The floating-point figures are those of `torch.testing.assert_close`, which follow from the mantissas (52, 23, 10
    and 7 bits); for 8-bit floats one step of the mantissa (3 and 2 bits); for integers one step of the quantisation.
    """
    import torch

    return {
        torch.float64: {"atol": 1e-7, "rtol": 1e-7},
        torch.float32: {"atol": 1e-5, "rtol": 1.3e-6},
        torch.float16: {"atol": 1e-5, "rtol": 1e-3},
        torch.bfloat16: {"atol": 1e-5, "rtol": 1.6e-2},
        torch.float8_e4m3fn: {"atol": 2**-9, "rtol": 2**-3},
        torch.float8_e4m3fnuz: {"atol": 2**-10, "rtol": 2**-3},
        torch.float8_e5m2: {"atol": 2**-16, "rtol": 2**-2},
        torch.int8: {"atol": 1, "rtol": 0},
        torch.uint8: {"atol": 1, "rtol": 0},
    }
