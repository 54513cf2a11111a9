"""That something has changed: a count for whoever keeps what follows from priorities, and whether scopes are open.

What has changed is not told; whoever sees another count asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import weakref


class Changes:
    """What is read at every call of a compiled function, so it is two attributes and no question.

    Attributes:
        epoch: raised by everything that may change an order of the process: a priority, an op, an implementation.
        scopes: the open scopes of all ops that some context can still see; empty means that nobody need look.
    """

    __slots__ = ("epoch", "scopes")

    def __init__(self) -> None:
        self.epoch = 0
        self.scopes: set[weakref.ref[object]] = set()

    def note(self) -> None:
        """Raise the count; call it with the lock of the process, behind the change."""
        self.epoch += 1
