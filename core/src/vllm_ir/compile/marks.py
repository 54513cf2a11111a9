"""What became of a graph, written where Inductor's caches keep it with the graph: in the counters of its compilation.

In a process that takes the graph from a cache no pass runs, but torch adds what was counted when the graph was made.
Nobody else compiles in between, since torch compiles forward and backward graphs under one lock; marks of another plan
are left out all the same.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from vllm_ir.compile.lowering import Lowered

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

PREFIX: Final = "vllm_ir "
"""The beginning of the names of our counters."""

_DIGITS: Final = 16
"""How much of a plan's digest is in a name."""


def leave(counters: MutableMapping[str, int], lowered: Lowered, digest: str, *, backward: bool) -> None:
    """Write down what became of a graph.

    Args:
        counters: Inductor's, while it compiles the graph.
        lowered: what became of it.
        digest: of the plan that it was compiled by.
        backward: whether it is a backward graph.
    """

    def count(number: int, *facts: str) -> None:
        """Add to one counter."""
        name = PREFIX + json.dumps([digest[:_DIGITS], backward, *facts])
        counters[name] = counters.get(name, 0) + number

    count(1, "graph")
    for op, nodes in lowered.selected.items():
        for node, provider in nodes.items():
            count(1, "runs", op, node, provider)
    for (op, provider, reason), number in lowered.refusals.items():
        count(number, "refuses", op, provider, reason)
    if lowered.copies:
        count(lowered.copies, "copies")


def find(before: Mapping[str, int], after: Mapping[str, int], digest: str) -> dict[bool, Lowered]:
    """Return what became of the graphs that were counted in between, by whether they are backward graphs.

    Args:
        before: Inductor's counters as they were.
        after: as they are.
        digest: of the plan that the graphs were compiled by.
    """
    found: dict[bool, Lowered] = {}
    for name, count in after.items():
        number = count - before.get(name, 0)
        if number <= 0 or not name.startswith(PREFIX):
            continue
        made_by, backward, kind, *facts = json.loads(name[len(PREFIX) :])
        if made_by != digest[:_DIGITS]:
            continue
        lowered = found.setdefault(backward, Lowered())
        if kind == "runs":
            op, node, provider = facts
            lowered.selected.setdefault(op, {})[node] = provider
        elif kind == "refuses":
            op, provider, reason = facts
            lowered.refusals[op, provider, reason] = number
        elif kind == "copies":
            lowered.copies = number
    return found
