"""What a graph pass is: a name, a change to a graph, and a key for the caches of what was compiled with it."""

from __future__ import annotations

import abc
import hashlib
import time
from typing import TYPE_CHECKING

from vllm_ir.compile import metadata
from vllm_ir.errors import BrokenPass, IrError
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

    def key(self) -> str:
        """Return what tells compiled graphs with this pass from others: its class's source and its public attributes.

        Override it for a pass that depends on more than that.
        """
        told = sorted((name, repr(value)) for name, value in vars(self).items() if not name.startswith("_"))
        text = "\n".join([self.name, source_digest(type(self)), *(f"{name}={value}" for name, value in told)])
        return hashlib.sha256(text.encode()).hexdigest()


def run_passes(
    passes: Sequence[BasePass], graph: fx.Graph, bringers: Sequence[str | None] | None = None
) -> list[PassRecord]:
    """Run passes over a graph in their order and return what they did.

    Args:
        passes: the passes.
        graph: functional, with fake results in each node's metadata.
        bringers: the distribution that brought each of them; None for one of the user's.

    Raises:
        BrokenPass: one raised, or left a graph that does not hold together.
    """
    records: list[PassRecord] = []
    for each, distribution in zip(passes, bringers or [None] * len(passes), strict=True):
        start = time.perf_counter()
        try:
            changes = _run(each, graph)
        except IrError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise BrokenPass(name=each.name, distribution=distribution, cause=cause) from error
        records.append(PassRecord(each.name, changes, time.perf_counter() - start))
    return records


def _run(each: BasePass, graph: fx.Graph) -> int:
    """Run one pass, see to the metadata of what it inserted, and return the number of its changes."""
    changes: object = each.apply(graph)
    if not isinstance(changes, int):
        message = f"apply returned {type(changes).__name__}, wanted the number of changes"
        raise TypeError(message)
    filled = metadata.fill(graph)
    if changes or filled:
        graph.lint()
    return int(changes)
