"""What was derived from a class."""

from __future__ import annotations

from vllm_ir_host_vllm.families import descendants


def test_descendants_come_once_and_parents_first() -> None:
    """A class with two parents of one family is one class."""
    top = type("Top", (), {})
    left, right = type("Left", (top,), {}), type("Right", (top,), {})
    both = type("Both", (left, right), {})
    assert descendants(top) == [left, both, right]
