"""How the rooms that take long tell what they are doing, without knowing who listens."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Steps(Protocol):
    """Who is told."""

    def step(self, what: str) -> AbstractContextManager[object]:
        """Return what is open while something that takes long goes on."""

    def say(self, sentence: str) -> None:
        """Tell something that the user should know."""


class Silence:
    """Tells nobody."""

    def step(self, what: str) -> AbstractContextManager[object]:  # noqa: ARG002 - the protocol's parameter
        """Return something that does nothing."""
        return nullcontext()

    def say(self, sentence: str) -> None:
        """Drop the sentence."""
