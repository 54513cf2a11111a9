"""What is asked before a provider is loaded, where an operator locked the selection; the door says who answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_load: list[Callable[[], Any]] = []


def prepare(load: Callable[[], Any]) -> None:
    """Set who answers; called once, by the door, with what brings it in when a lock is in force."""
    _load[:] = [load]


def guard() -> Any | None:
    """Return who answers, or None where nobody does; the level that asks knows its type."""
    return _load[0]() if _load else None
