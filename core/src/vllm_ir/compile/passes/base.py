"""What a graph pass is: a name, a change to a graph, and a key for the caches of what was compiled with it."""

from __future__ import annotations

import abc
import hashlib
import time
from typing import TYPE_CHECKING

from vllm_ir.compile import metadata
from vllm_ir.compile.aliases import Aliases
from vllm_ir.compile.passes.surroundings import Outcome, Surroundings
from vllm_ir.compile.writes import writes
from vllm_ir.errors import BrokenPass, IrError
from vllm_ir.errors.base import listed
from vllm_ir.fingerprint import source_digest
from vllm_ir.graphs import BasePass, PassRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx


class GraphPass(BasePass):
    """A change to graphs that hold ops; derive from it, write `apply`, and hand it to `passes=[...]`.

    A pass sees a functional graph behind AOTAutograd: every op is a call of its `default` overload, whoever will run
    it, and each node has its fake result in `node.meta["val"]`. What it inserts without one gets it from the fake of
    the operation that it calls; what reads that gets another one where its own no longer fits.

    Attributes:
        name: how logs and reports call it; the class's name unless set.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Name a pass by its class unless it names itself."""
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @abc.abstractmethod
    def apply(self, graph: fx.Graph) -> int:
        """Change a graph where it stands.

        Args:
            graph: functional, with fake results in each node's metadata.

        Returns:
            how many places were changed.
        """

    def transform(self, graph: fx.Graph, around: Surroundings) -> Outcome:  # noqa: ARG002 - for those that ask
        """Change a graph where it stands; override it for a pass that asks about the compilation or has more to tell.

        Args:
            graph: as `apply` takes it.
            around: what holds for the graph.
        """
        return Outcome(self.apply(graph))

    def key(self) -> str:
        """Return what tells compiled graphs with this pass from others: its class's source and its public attributes.

        Override it for a pass that depends on more than that.
        """
        told = sorted((name, repr(value)) for name, value in vars(self).items() if not name.startswith("_"))
        text = "\n".join([self.name, source_digest(type(self)), *(f"{name}={value}" for name, value in told)])
        return hashlib.sha256(text.encode()).hexdigest()


def run_passes(
    passes: Sequence[BasePass],
    graph: fx.Graph,
    bringers: Sequence[str | None] | None = None,
    around: Surroundings | None = None,
) -> list[PassRecord]:
    """Run passes over a graph in their order and return what they did.

    Args:
        passes: the passes.
        graph: functional, with fake results in each node's metadata.
        bringers: the distribution that brought each of them; None for one of the user's.
        around: what holds for the graph; inference, without a plan, when None.

    Raises:
        BrokenPass: one raised, or left a graph that does not hold together.
    """
    records: list[PassRecord] = []
    for each, distribution in zip(passes, bringers or [None] * len(passes), strict=True):
        start = time.perf_counter()
        try:
            outcome = _run(each, graph, around or Surroundings())
        except IrError:
            raise
        except _Unsound as error:
            raise BrokenPass(name=each.name, distribution=distribution, cause=str(error)) from None
        except Exception as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise BrokenPass(name=each.name, distribution=distribution, cause=cause) from error
        records.append(PassRecord(each.name, outcome.changes, time.perf_counter() - start, outcome.near_misses))
    return records


class _Unsound(Exception):
    """A pass has left a graph, or given an answer, that cannot be; the text is for whoever wrote it."""


def _run(each: BasePass, graph: fx.Graph, around: Surroundings) -> Outcome:
    """Run one pass, see to the metadata of what it inserted, and return what it did."""
    before = _Interface(graph)
    outcome = each.transform(graph, around) if isinstance(each, GraphPass) else Outcome(each.apply(graph))
    changes: object = outcome.changes
    if not isinstance(changes, int) or isinstance(changes, bool):
        message = f"apply returned {type(changes).__name__}, wanted the number of changes"
        raise _Unsound(message)
    if changes < 0:
        message = f"apply returned {changes}, wanted the number of changes, from 0 on"
        raise _Unsound(message)
    graph.lint()
    before.check(graph)
    metadata.fill(graph)
    return outcome


class _Interface:
    """What no pass may change: the inputs of a graph, how many results it has, and that nothing in it is written to.

    What AOTAutograd itself put in to write an input back stays. Everything else has to be functional, since which
    memory may be written to is decided when ops are lowered, from what was donated.

    Args:
        graph: before a pass.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._inputs = _inputs(graph)
        self._results = _results(graph)
        self._writes = set(writes(graph))

    def check(self, graph: fx.Graph) -> None:
        """Raise if a pass has changed it.

        Args:
            graph: behind the pass.

        Raises:
            _Unsound: it has.
        """
        if _inputs(graph) != self._inputs:
            message = f"it changed the inputs of the graph from {_names(self._inputs)} to {_names(_inputs(graph))}"
            raise _Unsound(message)
        if _results(graph) != self._results:
            message = f"it left the graph with {_results(graph)} results, wanted {self._results} as before"
            raise _Unsound(message)
        for node, written in writes(graph):
            if (node, written) in self._writes:
                continue
            whose = ", an input of the graph" if Aliases(graph).owned_by_caller(written) else ""
            message = (
                f"its node {node.name!r} ({node.target}) writes to {written.name!r}{whose}, and a pass leaves the graph"
                " functional: insert the operation that returns a new tensor"
            )
            raise _Unsound(message)


def _inputs(graph: fx.Graph) -> list[fx.Node]:
    """Return the inputs of a graph."""
    return [node for node in graph.nodes if node.op == "placeholder"]


def _results(graph: fx.Graph) -> int:
    """Return how many results a graph has."""
    last = next(reversed(graph.nodes), None)
    if last is None or last.op != "output":
        return 0
    value = last.args[0]
    return len(value) if isinstance(value, (list, tuple)) else 1


def _names(nodes: Sequence[fx.Node]) -> str:
    """Return the names of nodes."""
    return listed(node.name for node in nodes)
