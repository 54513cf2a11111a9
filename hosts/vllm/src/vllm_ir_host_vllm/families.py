"""A class and what was derived from it."""

from __future__ import annotations


def descendants(cls: type) -> list[type]:
    """Return every subclass that exists by now, each once, parents first."""
    found: dict[type, None] = {}
    children: list[type] = cls.__subclasses__()
    for child in children:
        found[child] = None
        found.update(dict.fromkeys(descendants(child)))
    return list(found)
