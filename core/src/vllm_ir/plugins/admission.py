"""What a lock in force is asked while providers are found and loaded; who answers is above this room.

Without a lock nobody is asked, and nothing of this is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vllm_ir import guarding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.errors import ProviderError
    from vllm_ir.landscape import Landscape
    from vllm_ir.op import IrOp
    from vllm_ir.plugins.static import Survey
    from vllm_ir.preferences import Preferences


class Admission(Protocol):
    """A lock in force."""

    def refuse(self, distribution: str) -> ProviderError | None:
        """Return why a distribution is not loaded, or None where it is in the lock."""

    def verify(self, found: Survey) -> None:
        """Hold what files tell against the lock, before anything is imported.

        Raises:
            LockMismatch: they are not what was locked.
        """

    def confirm(self, landscape: Landscape, ops: Iterable[IrOp]) -> Landscape:
        """Hold what loading found against the lock, and return it with what is pinned from now on.

        Raises:
            LockMismatch: it is not what was locked.
        """


def in_force(preferences: Preferences) -> Admission | None:
    """Return the lock that VLLM_IR_LOCK names, or None where it names none.

    Raises:
        LockUnreadable: there is no such file, or it is no plain one, or too large.
        MalformedLock: its content is not a lock's.
    """
    guard = guarding.guard() if preferences.environment.lock is not None else None
    found: Admission | None = None if guard is None else guard.enforce(preferences)
    return found
