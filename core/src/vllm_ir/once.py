"""Doing something once a process: threads wait for the one that does it, and who is inside it never waits for itself.

What is done is not known here.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

_PATIENCE: Final = 300.0
"""Seconds after which a waiting thread goes on without the result: the one that works may be waiting for it."""


class Once(Generic[Result]):
    """The result of something that is done once.

    Args:
        patience: how many seconds a thread waits for another.

    Attributes:
        finished: parts of the work that are done, by name, for whoever has to start it again.
    """

    def __init__(self, patience: float = _PATIENCE) -> None:
        self.finished: dict[str, Any] = {}
        self._patience = patience
        self._lock = threading.Lock()
        self._result: Result | None = None
        self._worker: tuple[int, int] | None = None

    @property
    def result(self) -> Result | None:
        """The result, or None as long as there is none."""
        return self._result

    @property
    def busy(self) -> bool:
        """Whether somebody in this process is making the result."""
        worker = self._worker
        return self._result is None and worker is not None and worker[0] == os.getpid()

    def get(self, run: Callable[[], Result]) -> Result | None:
        """Return the result, made by the first caller; what it raises is raised, and the next caller tries again.

        None is returned without waiting to a caller that the work itself has called, and to one in the middle of an
        import: the work may be waiting for that very import. A child forked in the middle of the work, in which
        nobody works on, starts it again.

        Args:
            run: does the work.
        """
        if self._result is not None:
            return self._result
        me = (os.getpid(), threading.get_ident())
        worker = self._worker
        if worker is not None and worker[1] == me[1]:
            return None
        if worker is not None and worker[0] != me[0]:
            # The thread that held the lock has not come along through the fork.
            self._lock, self._worker = threading.Lock(), None
        if not self._lock.acquire(timeout=0 if worker is not None and _inside_import() else self._patience):
            logger.warning("Discovery of providers is still going on in another thread; this one goes on without.")
            return None
        try:
            if self._result is None:
                self._worker = me
                self._result = run()
            return self._result
        finally:
            self._worker = None
            self._lock.release()


def _inside_import() -> bool:
    """Tell whether the current thread is importing a module."""
    frame = sys._getframe()  # noqa: SLF001 - the only way to walk the stack without reading source files
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
    return False
