"""What changes nothing goes, what is returned stays what it was, and memory that is written to keeps its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor
from vllm_ir import ops

from core.tests.compile.passes.decoder_parts import WIDE

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.compile.passes.conftest import Fuser

X, R, W = WIDE


def same_shape(x: Tensor) -> Any:
    """View as what it is."""
    return ops.rms_norm(x.view(x.shape), None, 1e-5)


def there_and_back(x: Tensor) -> Any:
    """Reshape twice."""
    return ops.rms_norm(x.reshape(-1, 4, 8).view(-1, 32), None, 1e-5)


def two_in_a_row(x: Tensor) -> Any:
    """Reshape to one shape and from there to another."""
    return ops.rms_norm(x.view(-1, 16).view(-1, 8), None, 1e-5)


def all_of_it(x: Tensor) -> Any:
    """Slice, expand and permute without effect."""
    return ops.rms_norm(x[:].expand(-1, 32).permute(0, 1), None, 1e-5)


def written_back(x: Tensor) -> Any:
    """Write back what was read."""
    y = x + 1
    y[:, 4:] = y[:, 4:]
    return ops.rms_norm(y, None, 1e-5)


def read_again(x: Tensor, other: Tensor) -> Any:
    """Read what was just written."""
    y = x + 1
    y[:, 8:] = other[:, 8:]
    return ops.rms_norm(y[:, 8:], None, 1e-5)


def written_over(x: Tensor, other: Tensor) -> Any:
    """Write over all of it."""
    y = torch.empty_like(x)
    y[:] = other
    return ops.rms_norm(y, None, 1e-5)


REMOVED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "same shape": (same_shape, (X,), "view"),
    "there and back": (there_and_back, (X,), "view"),
    "all of it": (all_of_it, (X,), "slice"),
    "written back": (written_back, (X,), "scatter"),
    "read again": (read_again, (X, R), "scatter"),
    "written over": (written_over, (X, R), "copy"),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", REMOVED)
def test_what_changes_nothing_goes(case: str, dynamic: bool, fuser: Fuser) -> None:
    """The result is the same, and the operation is in no graph behind the pass."""
    function, args, gone = REMOVED[case]
    got = fuser(function, *args, fusions=["noop_removal"], dynamic=dynamic)
    before, after = fuser.texts
    assert gone in before
    assert gone not in after
    assert fuser.ran("noop_removal").changes > 0
    assert torch.equal(got, function(*args))


def test_a_chain_of_reshapes_is_one(fuser: Fuser) -> None:
    """The second reads what the first was made of."""
    got = fuser(two_in_a_row, X, fusions=["noop_removal"])
    before, after = (text.count("view(") for text in fuser.texts)
    assert (before, after) == (2, 1)
    assert torch.equal(got, two_in_a_row(X))


def turned(x: Tensor) -> Any:
    """Permute a square, which looks like what it was."""
    return ops.rms_norm(x[:, :5].permute(1, 0), None, 1e-5)


def other_part(x: Tensor) -> Any:
    """Write somewhere else than was read."""
    y = x + 1
    y[:, :8] = y[:, 8:16]
    return ops.rms_norm(y, None, 1e-5)


def reshaped_slice(x: Tensor) -> Any:
    """Reshape what does not lie row by row."""
    return ops.rms_norm(x[:, :16].unflatten(-1, (2, 8)).flatten(-2), None, 1e-5)


@pytest.mark.parametrize(
    ("function", "kept"), [(turned, "permute"), (other_part, "slice_scatter"), (reshaped_slice, "view(view")]
)
def test_what_changes_something_stays(function: Callable[..., Any], kept: str, fuser: Fuser) -> None:
    """And so do the values."""
    got = fuser(function, X, fusions=["noop_removal"])
    assert kept in fuser.texts[1]
    assert torch.equal(got, function(X))


def test_a_view_that_is_returned_stays_one(fuser: Fuser) -> None:
    """Its memory is the input's, as in eager, and it is another object."""

    def returned(x: Tensor) -> Any:
        """Return a view, and something made of it."""
        view = x.view(x.shape)
        return view, ops.rms_norm(view, None, 1e-5)

    view, _ = fuser(returned, X, fusions=["noop_removal"])
    assert torch.equal(view, X)
    assert view._base is not None


def test_two_writes_back_do_not_read_each_other(state: Any) -> None:
    """Two inputs are exchanged: what is written to the second is what the first was."""
    assert state is not None

    def exchange(x: Tensor, other: Tensor) -> Any:
        """Exchange two tensors in place."""
        kept = torch.empty_like(x)
        kept.copy_(x)
        x.copy_(other)
        other.copy_(kept)
        return ops.rms_norm(x, None, 1e-5)

    first, second = X.clone(), R.clone()
    with torch.no_grad():
        vllm_ir.compile(exchange, fusions="all", lower_to=lambda module, _: module)(first, second)
    assert torch.equal(first, R)
    assert torch.equal(second, X)
