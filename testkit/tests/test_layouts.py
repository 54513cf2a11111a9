"""Layouts keep values and change how they lie."""

from __future__ import annotations

import pytest
import torch
from vllm_ir_testkit.layouts import LAYOUTS


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "repeated"])
@pytest.mark.parametrize("shape", [(4, 6), (2, 3, 6), (6,), (0, 6), (1, 6)])
def test_values_and_shape_stay(name: str, shape: tuple[int, ...]) -> None:
    """The same numbers are seen through other strides."""
    x = torch.randn(shape)
    assert torch.equal(LAYOUTS[name](x), x)


@pytest.mark.parametrize(
    ("name", "strides", "offset"),
    [
        ("packed", (18, 1), 6),
        ("gapped", (11, 1), 0),
        ("transposed", (1, 4), 0),
        ("stepped", (12, 2), 0),
        ("shifted", (6, 1), 1),
        ("repeated", (0, 1), 0),
    ],
)
def test_each_lies_as_its_name_says(name: str, strides: tuple[int, ...], offset: int) -> None:
    """Strides and offset of a 4 x 6 tensor."""
    laid = LAYOUTS[name](torch.randn(4, 6))
    assert laid.stride() == strides
    assert laid.storage_offset() == offset


def test_the_memory_around_a_view_is_not_zero() -> None:
    """A kernel that reads past its row would not notice zeros."""
    laid = LAYOUTS["packed"](torch.zeros(2, 4))
    whole = torch.empty(0).set_(laid.untyped_storage())
    assert (whole != 0).sum() == 16
