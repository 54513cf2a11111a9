"""Parts of one tensor that have no element in common are told apart, and nothing else is."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from vllm_ir.compile.overlap import overlapping

BASE = torch.zeros(720)


def elements(tensor: Tensor) -> set[int]:
    """Return which elements of the memory a tensor takes."""
    ranges = itertools.product(*map(range, tensor.shape))
    return {
        int(tensor.storage_offset()) + sum(i * s for i, s in zip(index, tensor.stride(), strict=True))
        for index in ranges
    }


@pytest.mark.parametrize("heads", [False, True], ids=["rows", "heads"])
def test_a_packed_projection(heads: bool) -> None:
    """Query, key and value overlap with the projection and not with each other."""
    packed = BASE.view(6, 120)
    parts = list(packed.split((60, 30, 30), dim=-1))
    if heads:
        parts = [part.unflatten(-1, (-1, 10)) for part in parts]
    for one, other in itertools.combinations(parts, 2):
        assert not overlapping(one, other)
        assert not overlapping(one[1:], other.transpose(0, 1))
    assert all(overlapping(part, packed) and overlapping(packed, part) for part in parts)


def test_rows_and_stripes() -> None:
    """Rows are apart, overlapping rows are not; an empty tensor overlaps with nothing."""
    rows = BASE.view(12, 60)
    assert not overlapping(rows[:4], rows[4:])
    assert overlapping(rows[:5], rows[4:])
    assert overlapping(rows, rows.t())
    assert not overlapping(rows[:0], rows)
    assert overlapping(rows[:1].expand(3, 60), rows[0, 7:9])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_never_apart_by_mistake(data: st.DataObject) -> None:
    """Of any two strided tensors that have an element in common it is never said that they are apart."""

    def draw() -> Tensor:
        """Return a strided tensor in the memory."""
        rank = data.draw(st.integers(1, 3))
        sizes = [data.draw(st.integers(1, 4)) for _ in range(rank)]
        strides = [data.draw(st.sampled_from((0, 1, 2, 3, 4, 6, 8, 12, 24, 48))) for _ in range(rank)]
        return torch.as_strided(BASE, sizes, strides, data.draw(st.integers(0, 60)))

    one, other = draw(), draw()
    if elements(one) & elements(other):
        assert overlapping(one, other)
        assert overlapping(other, one)
