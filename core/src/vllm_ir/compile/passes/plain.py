"""Plain arguments of calls: which are the same value, and how they are written in sentences."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from vllm_ir.compile.graph import same, value_of
from vllm_ir.compile.passes.reading import Symbol

if TYPE_CHECKING:
    from collections.abc import Sequence


def equal(one: Any, other: Any, *, typed: bool = False) -> bool:
    """Tell whether two plain values are the same, and of the same kind: True is not 1, and 0.0 is not -0.0.

    Args:
        one: a value.
        other: a value.
        typed: whether 1 is not 1.0 either.
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(equal(*pair, typed=typed) for pair in zip(one, other, strict=True))
    if isinstance(one, Symbol) and isinstance(other, Symbol) and one.node is not None and other.node is not None:
        return same(value_of(one.node), value_of(other.node))
    if isinstance(one, complex) and isinstance(other, complex):
        return equal((one.real, one.imag), (other.real, other.imag))
    if isinstance(one, bool) == isinstance(other, bool) and isinstance(one, (int, float)):
        return isinstance(other, (int, float)) and _same_number(one, other, typed=typed)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def argument(name: str) -> str:
    """Return an argument's name in words: torch's operations call their first two `self` and `other`."""
    return {"self": "the first argument", "other": "the second argument"}.get(name, repr(name))


def short(value: Any) -> str:
    """Return a value as it is read most easily."""
    return str(value).removeprefix("torch.")


def shape(sizes: Sequence[Any]) -> str:
    """Return sizes in brackets."""
    return f"[{', '.join(map(str, sizes))}]"


def _same_number(one: float, other: float, *, typed: bool) -> bool:
    """Tell whether two numbers are the same in memory, which tells zeros apart and finds NaN equal to itself."""
    fractions = isinstance(one, float), isinstance(other, float)
    if fractions[0] != fractions[1] and (typed or one != other):
        return False
    # An int that equals a float is none too large for one.
    return struct.pack("<d", one) == struct.pack("<d", other) if any(fractions) else one == other
