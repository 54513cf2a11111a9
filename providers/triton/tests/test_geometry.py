"""When loads may be of 16 bytes: every pointer and every stride decides, each alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from vllm_ir_provider_triton import geometry, rotation
from vllm_ir_provider_triton.variants import SILU, Launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

HALF = torch.bfloat16
SIZES = (3, 5, 7, 64)
HEAD = 16
OFF = 8
"""Elements of 16 bytes; a stride or an address that is one element more is no multiple of them."""


def laid(sizes: tuple[int, ...], odd: str = "", dtype: torch.dtype = HALF) -> Tensor:
    """Return a tensor whose rows lie apart at aligned distances, none of which is a multiple of another.

    Args:
        sizes: of it.
        odd: what is one element off: "address", or "stride" with the dimension.
        dtype: of it.
    """
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, -(-(strides[0] * size + OFF) // OFF) * OFF)
    if odd.startswith("stride"):
        strides[int(odd[-1])] += 1
    number = 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    memory = torch.zeros(number + 64, dtype=dtype)
    first = -(memory.data_ptr() // memory.element_size()) % 64 + (odd == "address")
    return memory.as_strided(sizes, strides, first)


def solid(sizes: tuple[int, ...], odd: str = "") -> Tensor:
    """Return a contiguous tensor, at an address that is one element off if that is asked for."""
    return torch.zeros(2 + torch.Size(sizes).numel(), dtype=HALF)[odd == "address" :][: torch.Size(sizes).numel()].view(
        sizes
    )


def norm(who: str = "", odd: str = "", size: int = 64) -> Launch:
    """Plan a fused norm of which one operand is odd."""
    sizes = (*SIZES[:3], size)
    made = {name: laid(sizes, odd if who == name else "") for name in ("x", "residual")}
    weight = laid((size,), odd if who == "weight" else "")
    out, residual_out = (solid(sizes, odd if who == name else "") for name in ("out", "residual_out"))
    return geometry.norm(
        "fused_add_rms_norm",
        made["x"],
        made["residual"],
        weight,
        1e-6,
        None,
        out,
        residual_out,
        "sm_90",
        fixed=False,
    )


def gate(who: str = "", odd: str = "", size: int = 64) -> Launch:
    """Plan a gate of which one operand is odd."""
    x = laid((*SIZES[:3], 2 * size), odd if who == "x" else "")
    return geometry.gate(SILU, x, solid((*SIZES[:3], size), odd if who == "out" else ""), "sm_90", fixed=False)


def rotary(who: str = "", odd: str = "", size: int = HEAD, turned: int = HEAD) -> Launch:
    """Plan a rotation of [3, 5, heads, head_size] of which one operand is odd."""
    query, key = (laid((3, 5, heads, size), odd if who == name else "") for name, heads in (("query", 4), ("key", 2)))
    outs = tuple(
        solid(tuple(x.shape), odd if who == f"{name}_out" else "") for x, name in ((query, "query"), (key, "key"))
    )
    cache = laid((8, turned), odd if who == "cache" else "")
    positions = laid((3, 5), odd if who == "positions" else "", torch.int64)
    return rotation.plan(positions, query, key, size, turned, cache, (outs[0], outs[1]), "sm_90", neox=True)


def packed(who: str = "", odd: str = "") -> Launch:
    """Plan a rotation of [3, 5, 7, heads * head_size], whose tokens lie at three distances."""
    query, key = (
        laid((*SIZES[:3], heads * HEAD), odd if who == name else "") for name, heads in (("query", 4), ("key", 2))
    )
    outs = (solid(tuple(query.shape)), solid(tuple(key.shape)))
    positions = laid(SIZES[:3], dtype=torch.int64)
    return rotation.plan(positions, query, key, HEAD, HEAD, laid((8, HEAD)), outs, "sm_90", neox=True)


OPERANDS: dict[Callable[..., Launch], dict[str, tuple[str, ...]]] = {
    norm: {
        "x": ("address", "stride0", "stride1", "stride2"),
        "residual": ("address", "stride0", "stride1", "stride2"),
        "weight": ("address",),
        "out": ("address",),
        "residual_out": ("address",),
    },
    gate: {"x": ("address", "stride0", "stride1", "stride2"), "out": ("address",)},
    rotary: {
        "query": ("address", "stride0", "stride1", "stride2"),
        "key": ("address", "stride0", "stride1", "stride2"),
        "query_out": ("address",),
        "key_out": ("address",),
        "cache": ("address", "stride0"),
    },
    packed: dict.fromkeys(("query", "key"), ("stride0", "stride1", "stride2")),
}
ODD = [(plan, who, odd) for plan, operands in OPERANDS.items() for who, each in operands.items() for odd in each]


@pytest.mark.parametrize("plan", OPERANDS)
def test_what_lies_at_16_bytes_is_read_by_16(plan: Callable[..., Launch]) -> None:
    """Rows at three distances, pointers and strides all multiples of that."""
    assert plan().variant.wide


@pytest.mark.parametrize(("plan", "who", "odd"), ODD)
def test_one_that_does_not_narrows_every_load(plan: Callable[..., Launch], who: str, odd: str) -> None:
    """A pointer or a stride that is one element off, of any operand: the program would fault, or read its neighbour."""
    assert not plan(who, odd).variant.wide


def test_sizes_count_like_strides() -> None:
    """Outputs are contiguous, so a row's size is their stride; a head and half of what is turned likewise."""
    assert not norm(size=60).variant.wide
    assert not gate(size=60).variant.wide
    assert not rotary(size=20).variant.wide
    assert not rotary(size=16, turned=8).variant.wide


def test_positions_are_read_one_by_one() -> None:
    """So where they lie narrows nothing."""
    assert rotary("positions", "address").variant.wide
    assert rotary("positions", "stride0").variant.wide
