"""Tensors in every layout that an op must take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.runtime import Runtime

LAYOUTS = ("contiguous", "transposed", "packed", "step_two", "offset", "expanded")


def lay_out(values: Tensor, layout: str) -> Tensor:
    """Return the same values in another layout, in storage of NaN where there is room between them."""
    room = float("nan") if values.is_floating_point() else 0
    *front, last = values.shape
    if layout == "contiguous":
        made = values.clone(memory_format=torch.contiguous_format)
    elif layout == "transposed":
        made = values.transpose(0, -1).contiguous().transpose(0, -1)
    elif layout == "packed":
        made = torch.full((*front, 3 * last), room, dtype=values.dtype)[..., last : 2 * last].copy_(values)
    elif layout == "step_two":
        made = torch.full((*front, 2 * last), room, dtype=values.dtype)[..., ::2].copy_(values)
    elif layout == "offset":
        made = torch.full((values.numel() + 5,), room, dtype=values.dtype)[5:].view(values.shape).copy_(values)
    else:
        made = values[:1].expand(values.shape) if front else values
    return made


@pytest.fixture(autouse=True)
def only_natives(state: Runtime) -> None:
    """Let no installed provider take a call, and make random values the same at each run."""
    assert state is not None
    torch.manual_seed(0)


@pytest.fixture(params=LAYOUTS)
def lay(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    """Give a function that brings values into each layout."""
    return lambda values: lay_out(values, request.param)


@pytest.fixture
def same_bits() -> Callable[[object, object], None]:
    """Give a function that fails unless tensors are equal bit for bit, with any NaN equal to any other."""

    def check(got: object, wanted: object) -> None:
        """Compare dtype, shape and bits."""
        mine = got if isinstance(got, (tuple, list)) else [got]
        theirs = wanted if isinstance(wanted, (tuple, list)) else [wanted]
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert torch.equal(bits(a), bits(b)), f"{int((bits(a) != bits(b)).sum())} of {a.numel()} differ"

    return check


def bits(values: Tensor) -> Tensor:
    """Return values as integers, every NaN as the same one."""
    if values.element_size() == 1:
        values = values.float()  # exact, and it has a NaN and a zero of either sign, too
    kinds = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    whole = torch.where(values.isnan(), torch.full_like(values, float("nan")), values)
    return whole.contiguous().view(kinds[values.element_size()])


@pytest.fixture
def sound() -> Callable[[Any, Sequence[Tensor]], None]:
    """Give a function that fails unless results are contiguous and share no memory with inputs or with each other."""

    def check(results: Any, inputs: Sequence[Tensor]) -> None:
        """Look at strides and storages."""
        made = list(results) if isinstance(results, (tuple, list)) else [results]
        assert all(result.is_contiguous() for result in made)
        places = [value.untyped_storage().data_ptr() for value in (*made, *inputs) if value.numel()]
        assert len(set(places[: len(made)])) == len(places[: len(made)])
        assert not set(places[: len(made)]) & set(places[len(made) :])

    return check
