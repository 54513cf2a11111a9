"""What the tests of the kernels share: native, one seed, the instruction sets, and how results are compared."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops
from vllm_ir_provider_cpu_c.library import native as compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Start every test from one seed."""
    torch.manual_seed(7)


@pytest.fixture(autouse=True)
def _same_instructions() -> Iterator[None]:
    """Leave the instruction set as it was found."""
    before = compiled.isa()
    yield
    compiled.use_isa(before)


@pytest.fixture(params=compiled.isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Run a test once with each instruction set that this CPU has."""
    compiled.use_isa(request.param)
    name: str = request.param
    return name


@pytest.fixture
def native() -> Callable[..., Any]:
    """Give a function that runs an op's native function."""

    def run(op: str, *args: Any) -> Any:
        """Return what native gives."""
        return getattr(ops, op).impls["native"].impl_fn(*args)

    return run


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _same_bits(got: Any, expected: Any) -> None:
    """Require the same shapes, dtypes, strides and bits; a NaN equals any NaN, and -0.0 not 0.0."""
    for one, other in zip(_tensors(got), _tensors(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.is_contiguous() == other.is_contiguous()
        if one.element_size() == 1:
            one, other = one.float(), other.float()  # noqa: PLW2901 - exact, and with the sign of zero
        whole = torch.int32 if one.dtype == torch.float32 else torch.int16
        wrong = (one.view(whole) != other.view(whole)) & ~(one.isnan() & other.isnan())
        assert not wrong.any(), (
            f"{int(wrong.sum())} of {wrong.numel()} differ, first {one[wrong][:3]} {other[wrong][:3]}"
        )


def _special(dtype: torch.dtype, size: int) -> Tensor:
    """Return rows [10, size] of what is easily got wrong: NaN, infinities, subnormals, zeros, ties, extremes."""
    rows = torch.randn(10, size)
    finfo = torch.finfo(dtype)
    rows[0, 0] = float("nan")
    rows[1, size // 2] = float("inf")
    rows[2, -1] = -float("inf")
    rows[3] = -0.0
    rows[4] = 0.0
    rows[5] = torch.where(rows[5] > 0, finfo.smallest_normal / 4, -finfo.smallest_normal / 8)
    rows[6] = finfo.max
    rows[7] = finfo.tiny
    # Halfway between two neighbours in bfloat16 and float16, once the row is normalised.
    rows[8] = 1.0 + torch.arange(size) % 64 / 256
    rows[9] = rows[9] * 1e4
    return rows.to(dtype)


@pytest.fixture
def threads() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """Give a context manager that sets the number of torch's threads."""
    return _threads


@pytest.fixture
def same_bits() -> Callable[[Any, Any], None]:
    """Give the comparison of results."""
    return _same_bits


@pytest.fixture
def special() -> Callable[[torch.dtype, int], Tensor]:
    """Give rows of what is easily got wrong."""
    return _special
