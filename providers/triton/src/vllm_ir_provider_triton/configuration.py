"""How wide a launch is: rows of a program, elements of its block, warps. Nothing is tried out while a request waits.

A small table per architecture has the facts that a rule of thumb needs; what `vllm-ir bench --tune` found stands before
the rule. A block's size goes by the size of a row alone, here and in what is tuned.
"""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from vllm_ir_provider_triton import tuned
from vllm_ir_provider_triton.variants import ACCESS

FEW: Final = 64
"""Up to so many rows, most of a GPU is idle, so that a row may have more warps."""

SMALLEST_BLOCK: Final = 64
LARGEST_BLOCK: Final = 16384
"""Elements that a program keeps of a row at most; a longer row is read twice."""

LOOP_BLOCK: Final = 8192
"""Elements of such a row that are summed at once."""

MOST_ROWS: Final = 32
HEAD_PAIRS: Final = 512


class Shape(NamedTuple):
    """How wide a launch is.

    Attributes:
        rows: rows, or heads, of a program.
        block: elements of a row, or pairs of a head, that it has at once; a power of two.
        warps: of a program.
    """

    rows: int
    block: int
    warps: int


class Machine(NamedTuple):
    """What the rule of thumb asks of an architecture.

    Attributes:
        lanes: threads of a warp.
        bytes: of a row that a thread shall have.
        warps: that a program shall have at most.
    """

    lanes: int
    bytes: int
    warps: int


MACHINES: Final = {
    "sm_80": Machine(32, 32, 16),
    "sm_90": Machine(32, 32, 16),
    "sm_100": Machine(32, 32, 16),
    "sm_120": Machine(32, 32, 16),
    "gfx942": Machine(64, 32, 16),
    "gfx950": Machine(64, 32, 16),
    "gfx1201": Machine(32, 32, 16),
}
"""Machines by architecture; others are taken for the first of their kind. Reasoned, not measured yet."""


@cache
def machine(arch: str) -> Machine:
    """Return the facts of an architecture, such as "sm_90" or "gfx942"; warps of gfx9 have 64 threads."""
    known = MACHINES.get(arch)
    if known is not None:
        return known
    return MACHINES["gfx942" if arch.startswith("gfx9") else "gfx1201" if arch.startswith("gfx") else "sm_80"]


def power(number: int) -> int:
    """Return the smallest power of two that is not below a positive number."""
    return 1 << max(number - 1, 0).bit_length()


def size_class(size: int) -> int:
    """Return what sizes of rows that are launched alike have in common: the block that would hold one."""
    return max(SMALLEST_BLOCK, power(size))


@cache
def choose(kind: str, arch: str, size: int, number: int, *, few: bool) -> Shape:
    """Return the shape of a launch of a norm, a gated activation or a quantisation.

    Args:
        kind: "norm", "fused", "gate", "scaled", "grouped", "norm_quant" or "fused_quant".
        arch: such as "sm_90".
        size: elements of a row, of its half, or of a group.
        number: bytes of one.
        few: whether there are few rows.
    """
    rule = by_rule(kind, arch, size, number, few=few)
    found = tuned.find(arch, tuned.key(kind, size_class(size), number, few=few))
    if found is None:
        return rule
    rows, warps = found
    shape = Shape(rows, rule.block, warps)
    return shape if fits(shape, arch, size) else rule


@cache
def choose_heads(arch: str, pairs: int, heads: int, number: int) -> Shape:
    """Return the shape of a launch of the rotation.

    Args:
        arch: such as "sm_90".
        pairs: of a head.
        heads: of a token, at most.
        number: bytes of one element.
    """
    facts = machine(arch)
    block = max(16, power(pairs))
    rows = min(max(1, HEAD_PAIRS // block), power(heads))
    rows = max(rows, facts.lanes // block)  # a lane for every pair, so that none is read by two
    warps = max(1, min(rows * block * number // (facts.lanes * ACCESS), 8))
    found = tuned.find(arch, tuned.key("rotary", block, number, few=False))
    if found is not None and fits(Shape(found[0], block, found[1]), arch, block):
        return Shape(found[0], block, found[1])
    return Shape(rows, block, warps)


def by_rule(kind: str, arch: str, size: int, number: int, *, few: bool) -> Shape:
    """Return the shape that the rule of thumb gives; arguments as `choose`."""
    facts = machine(arch)
    if kind in ("gate", "scaled"):
        block = min(size_class(size), 4 * facts.lanes * ACCESS // number)
        return Shape(min(MOST_ROWS, 4 * facts.lanes * ACCESS // (number * block)), block, 4)
    if kind == "grouped" and size > LARGEST_BLOCK:  # with gate and up of a wider block, registers spill
        return Shape(1, LOOP_BLOCK // 2, facts.warps)
    block = size_class(size) if size <= LARGEST_BLOCK else LOOP_BLOCK
    warps = block * number // (facts.lanes * facts.bytes)
    if warps < 4:  # noqa: PLR2004 - warps of a block of short rows
        rows = min(MOST_ROWS, 4 * facts.lanes * facts.bytes // (block * number))
        return Shape(rows, block, max(1, rows * block * number // (facts.lanes * facts.bytes)))
    return Shape(1, block, min(warps * 2 if few else warps, facts.warps))


def forget() -> None:
    """Choose anew from here on, since the table has changed."""
    choose.cache_clear()
    choose_heads.cache_clear()


def fits(shape: Shape, arch: str, size: int) -> bool:
    """Tell whether a shape may be launched: a lane for every element, a grid of programs, and rows that are not cut.

    With fewer elements than lanes, two threads would read what one of them writes in place.
    """
    lanes = machine(arch).lanes
    return (
        1 <= shape.rows <= MOST_ROWS
        and 1 <= shape.warps * lanes <= 1024  # noqa: PLR2004 - threads of a block
        and shape.rows * shape.block >= shape.warps * lanes
        and shape.rows * shape.block <= 2 * LARGEST_BLOCK
        and shape.rows & (shape.rows - 1) == shape.warps & (shape.warps - 1) == 0
        and (shape.rows == 1 or size <= shape.block)
    )
