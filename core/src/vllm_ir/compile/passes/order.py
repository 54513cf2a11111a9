"""In which order passes run: as they were given, moved only as far as what each declares about others asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import PassesInCircle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.graphs import BasePass


def ordered(passes: Iterable[BasePass]) -> tuple[BasePass, ...]:
    """Return passes in an order that keeps to their `before` and `after`; names that are not there ask for nothing.

    Args:
        passes: in the order that holds where nothing else is declared.

    Raises:
        PassesInCircle: no order does.
    """
    waiting = list(passes)
    found: list[BasePass] = []
    while waiting:
        ready = next((each for each in waiting if not _earlier(each, waiting)), None)
        if ready is None:
            raise PassesInCircle(names=_circle(waiting))
        waiting.remove(ready)
        found.append(ready)
    return tuple(found)


def _earlier(each: BasePass, others: Iterable[BasePass]) -> list[BasePass]:
    """Return those of others that have to run before a pass."""
    after = getattr(each, "after", ())
    return [
        other
        for other in others
        if other is not each and (other.name in after or each.name in getattr(other, "before", ()))
    ]


def _circle(waiting: list[BasePass]) -> tuple[str, ...]:
    """Return the names of passes each of which has to run before the one behind it, back to the first."""
    way = [waiting[0]]
    while True:
        before = _earlier(way[-1], waiting)[0]
        if before in way:
            return tuple(each.name for each in reversed([*way[way.index(before) :], before]))
        way.append(before)
