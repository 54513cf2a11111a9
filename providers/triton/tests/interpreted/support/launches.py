"""Launches of other widths than the rule gives, and whether a call's bits depend on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comparing import same
from vllm_ir_provider_triton import configuration
from vllm_ir_provider_triton.configuration import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

EPSILON = 1e-6
NEOX = True


def shapes_of(size: int) -> list[Shape]:
    """Return launches of several widths for rows of a size, with blocks larger than need be."""
    block = configuration.size_class(size)
    return [Shape(1, block, 4), Shape(4, block, 8), Shape(1, 2 * block, 2), Shape(2, 4 * block, 16)]


def order_depends(run: Callable[[], Any], size: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tell whether the bits of a call change with the width of its launch."""
    found = []
    for shape in shapes_of(size):
        monkeypatch.setattr(configuration, "choose", lambda *_, shape=shape, **__: shape)
        found.append(run())
    return not all(same(found[0], each) for each in found[1:])
