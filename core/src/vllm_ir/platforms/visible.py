"""Which devices a variable such as `CUDA_VISIBLE_DEVICES` leaves visible: the one grammar that the vendors share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Item = TypeVar("Item")


def select(listed: str | None, items: Sequence[Item], by_id: Callable[[str], Item | None]) -> tuple[Item, ...]:
    """Return the items that a list of indices and identifiers names, in its order.

    As the vendors' runtimes do: no list means all, an empty one none, the first entry that names nothing ends the
    list, and a list that names one item twice leaves none.

    Args:
        listed: text of the variable, or None where it is not set.
        items: every device, in the order that indices count.
        by_id: finds the device with an identifier that is no number.
    """
    if listed is None:
        return tuple(items)
    chosen: list[Item] = []
    for token in (part.strip() for part in listed.split(",")):
        if token.isascii() and token.isdigit():
            item = items[int(token)] if int(token) < len(items) else None
        else:
            item = by_id(token) if token else None
        if item is None:
            break
        if item in chosen:
            return ()
        chosen.append(item)
    return tuple(chosen)
