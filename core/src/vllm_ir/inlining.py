"""What a graph in the making asks about an op in it; the door says who answers, so that no room below need know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Inliner(Protocol):
    """Who answers."""

    def notice(self, op: str) -> None:
        """Take note that the graph that is being made holds an op of ours, of that name."""

    def expand(self, mode: Any, overload: Any, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call as operations of torch, or NotImplemented where the op stays whole.

        Args:
            mode: the mode that records the graph, not in force.
            overload: the torch op that is called.
            op: its name.
            args: fake tensors and numbers.
            kwargs: the same by name.
        """


_load: list[Callable[[], Inliner]] = []


def prepare(load: Callable[[], Inliner]) -> None:
    """Set who answers; called once, by the door, with what brings it in when it is first asked."""
    _load[:] = [load]


def inliner() -> Inliner | None:
    """Return who answers, or None where nobody does."""
    return _load[0]() if _load else None
