"""Where results go, and how many launches a call has; native does on this CPU what a launch asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_triton import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_provider_triton.variants import Launch

NEOX = True

pytestmark = pytest.mark.usefixtures("launches")


def function(op: str) -> Callable[..., Any]:
    """Return what runs an op, in place where it may."""
    found = getattr(kernels, op)
    return getattr(found, "impl_fn", found)  # type: ignore[no-any-return]


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


def overlapping() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return calls whose donated tensors share memory, with each other or with what is read beside them."""
    x, other, weight = torch.randn(70, 64), torch.randn(70, 64), torch.randn(64)
    positions, cache = torch.arange(70) % 8, torch.randn(8, 16)
    return {
        "x is the residual": ("fused_add_rms_norm", (x, x, weight, 1e-6)),
        "the residual begins in x": ("fused_add_rms_norm", (x.flatten()[:2048].view(32, 64), x[31:63], weight, 1e-6)),
        "x begins in the residual": ("fused_add_rms_norm", (x[31:63], x[:32], weight, 1e-6)),
        "the weight is a row of x": ("fused_add_rms_norm", (x, other, x[0], 1e-6)),
        "the weight is a row of the residual": ("fused_add_rms_norm", (x, other, other[69], 1e-6)),
        "key is query": ("rotary_embedding", (positions, x, x, 16, 16, cache, True)),
        "angles are in query": ("rotary_embedding", (positions, x, other, 16, 16, x[9:17, 48:], True)),
        "angles are in key": ("rotary_embedding", (positions, x, other, 16, 16, other[60:68, :16], True)),
        "positions are in key": (
            "rotary_embedding",
            (other.view(torch.int32).fill_(1)[:, 3], x, other, 16, 16, cache, True),
        ),
    }


@pytest.mark.parametrize("name", overlapping())
def test_what_shares_memory_is_left_alone(name: str) -> None:
    """Programs run in any order, so one would read what another has written; the results are new tensors."""
    op, args = overlapping()[name]
    before = clones(args)
    wanted = getattr(ops, op).impls["native"].impl_fn(*args)
    got = function(op)(*args)
    donated = [args[i] for i in getattr(ops, op).activation_indices]
    assert not any(one is given for one in got for given in donated)
    assert all(
        torch.equal(one, other) for one, other in zip(args, before, strict=True) if isinstance(one, torch.Tensor)
    )
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_neighbours_in_memory_are_written_in_place() -> None:
    """One tensor ends where the other begins, and the weight or the angles lie around them: nothing is shared."""
    whole = torch.randn(210, 64)
    x, residual, weight = whole[:70], whole[70:140], whole[140]
    assert kernels.fused_add_rms_norm.impl_fn(x, residual, weight, 1e-6)[0] is x
    positions = torch.arange(70) % 8
    assert kernels.rotary_embedding.impl_fn(positions, residual, x, 16, 16, whole[140:148, :16], NEOX)[0] is residual


ONE_POSITION = {
    "heads in a dimension of their own": ((8, 16), (2, 16)),
    "five rows of them": ((5, 8, 16), (5, 2, 16)),
    "packed and not": ((5, 64), (3, 2, 16)),
    "one head, and many tokens": ((16,), (4, 64)),
    "no key": ((4, 16), (0, 16)),
    "one token of many heads": ((1, 8, 16), (1, 2, 16)),
}


@pytest.mark.parametrize("name", ONE_POSITION)
@pytest.mark.parametrize("op", ["rotary_embedding", "functional_rotary_embedding"])
def test_one_position_is_for_all_rows(op: str, name: str, launches: list[Launch]) -> None:
    """Query and key may then have rows as they like; each launch has as many programs as its tensors have blocks."""
    query, key = (torch.randn(sizes) for sizes in ONE_POSITION[name])
    args = (torch.tensor([5]), query, key, 16, 16, torch.randn(8, 16), True)
    wanted = ops.rotary_embedding.impls["native"].impl_fn(*args)
    given = clones(args)
    got = function(op)(*given)
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))
    assert [one is other for one, other in zip(got, given[1:3], strict=True)] == [op == "rotary_embedding"] * 2
    if name == "one token of many heads":
        assert [each.numbers[9:11] for each in launches] == [(8, 2)]
    else:
        assert [each.numbers[10] for each in launches] == [0, 0]
        for launch, x in zip(launches, (query, key), strict=True):
            heads = launch.numbers[9]
            rows = x.numel() // (16 * int(heads))
            assert launch.blocks == rows * -(-heads // launch.variant.constants[4])
