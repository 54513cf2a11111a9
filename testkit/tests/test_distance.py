"""Distances in units of the last place."""

from __future__ import annotations

import math

import pytest
import torch
from vllm_ir_testkit.distance import FAR, compare, ordered

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_neighbours_are_one_unit_apart(dtype: torch.dtype) -> None:
    """Also across zero, where both zeros are one number."""
    x = torch.tensor([1.0, -1.0, 0.0], dtype=dtype)
    up = torch.nextafter(x, torch.full_like(x, math.inf))
    assert (ordered(up) - ordered(x)).tolist() == [1, 1, 1]
    assert ordered(torch.tensor([-0.0, 0.0], dtype=dtype)).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_tensors_differ_nowhere(dtype: torch.dtype) -> None:
    """NaN equals NaN here."""
    x = torch.randn(5, 7).to(dtype)
    x[0, 0] = math.nan
    found = compare(x, x.clone())
    assert (found.elements, found.differing, found.special, found.zero_signs) == (35, 0, 0, 0)


def test_what_differs_is_counted_and_shown() -> None:
    """Two of four elements, the worst by three units, named with its place."""
    wanted = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16)
    got = wanted.clone()
    got.view(torch.int16)[0, 1] += 1
    got.view(torch.int16)[1, 0] -= 3
    found = compare(got, wanted)
    assert (found.differing, found.worst_units, found.share) == (2, 3, 0.5)
    assert found.example.startswith("at [1, 0]: ")


@pytest.mark.parametrize(
    ("got", "wanted"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 65504.0), (-math.inf, math.inf), (0.0, math.inf)]
)
def test_special_values_on_one_side_are_far(got: float, wanted: float) -> None:
    """An infinity beside the largest number is no neighbour of it."""
    found = compare(torch.tensor([got], dtype=torch.float16), torch.tensor([wanted], dtype=torch.float16))
    assert found.special == 1
    assert found.worst_units == FAR


def test_the_sign_of_zero_is_counted_apart() -> None:
    """It is no difference in value."""
    found = compare(torch.tensor([0.0, -0.0, -0.0]), torch.tensor([-0.0, -0.0, 1.0]))
    assert found.zero_signs == 1
    assert found.differing == 1


def test_the_tolerance_is_that_of_assert_close() -> None:
    """Beyond counts what assert_close would refuse."""
    wanted = torch.tensor([1.0, 10.0])
    found = compare(wanted + torch.tensor([2e-3, 2e-3]), wanted, atol=1e-3, rtol=1e-4)
    assert found.beyond == 1


def test_integers_and_empty_tensors() -> None:
    """Integers are equal or not; nothing differs from nothing."""
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 5])).beyond == 1
    assert compare(torch.empty(0), torch.empty(0)).elements == 0
