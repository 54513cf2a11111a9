"""What a graph pass is, and what became of each compiled graph: who runs what, who refused, what passes did."""

from __future__ import annotations

import abc
import collections
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import fx

KEPT: Final = 1000
"""How many graphs a process remembers; a server that recompiles without end must not grow without end."""

BACKWARD: Final = " backward"
"""The end of a backward graph's name."""


class BasePass(abc.ABC):
    """What a graph pass is, as those see it who hand it on; `vllm_ir.compile.passes.GraphPass` is what to derive from.

    Attributes:
        name: how logs and reports call it.
    """

    name: str = ""

    @abc.abstractmethod
    def apply(self, graph: fx.Graph) -> int:
        """Change a graph where it stands and return how many places were changed."""

    @abc.abstractmethod
    def key(self) -> str:
        """Return what tells compiled graphs with this pass from others."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """Why a pass left calls alone that it looked for.

    Attributes:
        op: the op that is called.
        reason: in words.
        count: how many calls.
        node: the first of them.
        where: the user's line of that, as "file:line, in function: code"; empty where it is not known.
    """

    op: str
    reason: str
    count: int = 1
    node: str = ""
    where: str = ""

    def __str__(self) -> str:
        """Return it in one line."""
        first = f"first in node {self.node!r}" if self.count > 1 else f"in node {self.node!r}"
        at = f" ({self.where})" if self.where else ""
        return f"{self.op} left alone{_times(self.count)}, {first}{at}: {self.reason}"


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one pass did to one graph.

    Attributes:
        name: the pass.
        changes: in how many places.
        seconds: how long it took.
        near_misses: what a fusion left alone, with the reason.
    """

    name: str
    changes: int
    seconds: float
    near_misses: tuple[NearMiss, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphRecord:
    """What became of one compiled graph.

    Attributes:
        name: how Dynamo calls it, such as "0/1"; a backward graph ends in " backward".
        selected: by op and node, who runs it: `{"rms_norm": {"rms_norm_1": "native"}}`.
        refusals: op, provider, reason and how often, of candidates before those selected.
        passes: what each pass did; those that a cache made unnecessary are not there.
        copies: how many copies in-place implementations needed.
        seconds: how long all of these passes took, without Inductor.
        cached: whether it came from a cache; all but passes and seconds is then what was found when it was made.
        digest: of the plan that it was compiled by.
        whole: how often each op stayed in the graph as it is, to dispatch when it runs; `lower_to` may leave some.
        place: where the program begins that the graph is of, as "file:line, in function"; empty where it is not known.
        number: of the graph in this process, from 1 on, in the order in which they were made; 0 before that is known.
    """

    name: str
    selected: Mapping[str, Mapping[str, str]]
    refusals: tuple[tuple[str, str, str, int], ...] = ()
    passes: tuple[PassRecord, ...] = ()
    copies: int = 0
    seconds: float = 0.0
    cached: bool = False
    digest: str = ""
    whole: Mapping[str, int] = field(default_factory=dict)
    place: str = ""
    number: int = 0

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many calls each provider runs, by op."""
        return {op: dict(collections.Counter(nodes.values())) for op, nodes in self.selected.items()}

    def __str__(self) -> str:
        """Return what runs in one line, and a line for each refusal."""
        runs = [f"{op} by {_listed(providers)}" for op, providers in self.counts.items()]
        runs += [f"{op} whole{_times(count)}" for op, count in self.whole.items()]
        facts = ["; ".join(runs) or "no op in it", f"{self.copies} copies" if self.copies != 1 else "1 copy"]
        facts.append("from a cache" if self.cached else f"our passes took {1e3 * self.seconds:.1f} ms")
        told = ", ".join([*([f"no. {self.number}"] if self.number else []), *([self.place] if self.place else [])])
        lines = [f"graph {self.name or 'without a name'}{f' ({told})' if told else ''}: {', '.join(facts)}"]
        lines += [f"  {provider} refused {op} {count}x: {reason}" for op, provider, reason, count in self.refusals]
        return "\n".join(lines)

    def details(self) -> Iterator[str]:
        """Give one line for each provider of each op with the calls it runs, and one for each pass."""
        for op, nodes in self.selected.items():
            by_provider: dict[str, list[str]] = {}
            for node, provider in nodes.items():
                by_provider.setdefault(provider, []).append(node)
            for provider, names in by_provider.items():
                yield f"{provider} runs {op} in {shortened(names)}"
        for op in self.whole:
            yield f"{op} dispatches when it runs: nobody put an implementation in its place"
        for each in self.passes:
            yield f"pass {each.name}: {each.changes} changes in {1e3 * each.seconds:.1f} ms"
            for miss in each.near_misses:
                yield f"pass {each.name}: {miss}"


class Records:
    """The graphs that this process compiled, the last ones if there are too many."""

    def __init__(self) -> None:
        self._graphs: collections.deque[GraphRecord] = collections.deque(maxlen=KEPT)
        self._counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self._made = 0
        self._lock = threading.Lock()

    def add(self, graph: GraphRecord) -> GraphRecord:
        """Remember a graph and return it with its number."""
        with self._lock:
            self._made += 1
            numbered = replace(graph, number=self._made)
            self._graphs.append(numbered)
            self._counts.update((op, provider) for op, found in graph.counts.items() for provider in found)
        return numbered

    def all(self) -> tuple[GraphRecord, ...]:
        """Return what is remembered, oldest first."""
        with self._lock:
            return tuple(self._graphs)

    def counts(self, op: str) -> dict[str, int]:
        """Return in how many graphs each provider runs an op; forgotten graphs count, calls inside a graph do not."""
        with self._lock:
            return {provider: count for (name, provider), count in self._counts.items() if name == op}

    def clear(self) -> None:
        """Forget everything; for tests."""
        with self._lock:
            self._graphs.clear()
            self._counts.clear()


def shortened(names: Iterable[str]) -> str:
    """Return names of nodes in one text, with "a_1 to a_9" for those that are numbered on."""
    runs: list[list[str]] = []
    before: tuple[str, int] | None = None
    for name in names:
        stem, _, number = name.rpartition("_")
        here = (stem, int(number)) if stem and number.isdigit() else (name, 0)
        if before is not None and here == (before[0], before[1] + 1):
            runs[-1].append(name)
        else:
            runs.append([name])
        before = here
    few = 2
    return ", ".join(", ".join(run) if len(run) <= few else f"{run[0]} to {run[-1]}" for run in runs)


def _listed(providers: Mapping[str, int]) -> str:
    """Return providers with the number of calls each runs, where it is more than one."""
    return " and ".join(provider + _times(count) for provider, count in providers.items())


def _times(count: int) -> str:
    """Return how often, where it is more than once."""
    return f" ({count}x)" if count > 1 else ""
