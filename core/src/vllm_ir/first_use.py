"""What a process does before its first selection; the door says what, so that no room below it need know."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_steps: list[Callable[[], object]] = []


def prepare(step: Callable[[], object]) -> None:
    """Set what is done; called once, by the door."""
    _steps[:] = [step]


def run() -> None:
    """Do it; whatever is done makes sure itself that it is done once."""
    for step in _steps:
        step()
