"""What became of each compiled graph: who runs which call, who refused, and what passes did."""

from __future__ import annotations

import collections
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KEPT: Final = 1000
"""How many graphs a process remembers; a server that recompiles without end must not grow without end."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did to one graph.

    Attributes:
        name: the pass.
        changes: in how many places.
        seconds: how long it took.
    """

    name: str
    changes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """What became of one compiled graph.

    Attributes:
        name: how Dynamo calls it, such as "0/1"; a backward graph ends in " backward".
        selected: by op and node, who runs it: `{"rms_norm": {"rms_norm_1": "native"}}`.
        refusals: op, provider, reason and how often, of candidates before those selected; unknown from a cache.
        passes: what each pass did; empty from a cache.
        copies: how many copies in-place implementations needed; unknown, and 0, from a cache.
        seconds: how long all of this took, without Inductor.
        cached: whether it came from a cache, so that no pass ran.
        digest: of the plan that it was compiled by.
    """

    name: str
    selected: Mapping[str, Mapping[str, str]]
    refusals: tuple[tuple[str, str, str, int], ...] = ()
    passes: tuple[PassRecord, ...] = ()
    copies: int = 0
    seconds: float = 0.0
    cached: bool = False
    digest: str = ""


class Records:
    """The graphs that this process compiled, the last ones if there are too many."""

    def __init__(self) -> None:
        self._graphs: collections.deque[GraphRecord] = collections.deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, graphs: Iterable[GraphRecord]) -> None:
        """Remember graphs."""
        with self._lock:
            self._graphs.extend(graphs)

    def all(self) -> tuple[GraphRecord, ...]:
        """Return what is remembered, oldest first."""
        with self._lock:
            return tuple(self._graphs)

    def clear(self) -> None:
        """Forget everything; for tests."""
        with self._lock:
            self._graphs.clear()
