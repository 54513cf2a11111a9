"""Facts that are worked out once a process, by key: threads that ask for the same one wait for it.

What the facts are is not known here; `once` is for work that may call itself or be interrupted by an import.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

Key = TypeVar("Key")
Fact = TypeVar("Fact")


class Memo(Generic[Key, Fact]):
    """Facts by key.

    Args:
        store: what keeps them; one with weak keys forgets a fact together with what it is about. Default: a dict.
    """

    def __init__(self, store: MutableMapping[Key, Fact] | None = None) -> None:
        self._facts: MutableMapping[Key, Fact] = {} if store is None else store
        self._lock = threading.RLock()
        self._process = os.getpid()

    def get(self, key: Key, work_out: Callable[[], Fact]) -> Fact:
        """Return the fact about a key, worked out by the first who asks; what that raises is raised and not kept.

        Args:
            key: what the fact is about; hashable.
            work_out: works it out.
        """
        found = self._facts.get(key)
        if found is not None:
            return found
        if self._process != os.getpid():
            # The thread that held the lock has not come along through the fork.
            self._lock, self._process = threading.RLock(), os.getpid()
        with self._lock:
            found = self._facts.get(key)
            if found is None:
                found = self._facts[key] = work_out()
            return found

    def forget(self) -> None:
        """Forget every fact."""
        with self._lock:
            self._facts.clear()
