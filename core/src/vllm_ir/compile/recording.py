"""From what the passes did to what is remembered and logged of each graph, taken from a cache or not."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from vllm_ir import runtime
from vllm_ir.compile import marks, torch_version
from vllm_ir.graphs import BACKWARD, GraphRecord
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vllm_ir.compile.lowering import Lowered
    from vllm_ir.compile.pipeline import Pipeline


class Recorder:
    """Remembers and logs what becomes of the graphs of one compilation.

    Args:
        name: how Dynamo calls the graph.
        pipeline: what happens to it, to its forward graph and to its backward graph.
        place: where the program begins that it is of.

    Attributes:
        pipeline: the same.
        ops: those that implementations were put in place of, so far.
    """

    def __init__(self, name: str, pipeline: Pipeline, place: str = "") -> None:
        self._name = name
        self._place = place
        self.pipeline = pipeline
        self._seen = False
        self.ops: set[str] = set()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Watch Inductor compile everything that it compiles now; a cache may have all of it."""
        counters, caches = dict(torch_version.counters()), torch_version.cache_counts()
        yield
        _log_caches(self._name, caches, "AOTAutogradCache")
        if not self._seen:
            found = marks.find(counters, torch_version.counters(), self.pipeline.plan.digest)
            for backward in sorted(found):
                self._add(found[backward], backward=backward, cached=True)

    @contextlib.contextmanager
    def one(self, *, backward: bool) -> Iterator[None]:
        """Watch a compiler make one graph, now or when its backward is first wanted, in whatever thread that is."""
        self._seen, self.pipeline.backward = True, backward
        counters, caches = dict(torch_version.counters()), torch_version.cache_counts()
        yield
        cached = None
        if self.pipeline.lowered is None:
            cached = marks.find(counters, torch_version.counters(), self.pipeline.plan.digest).get(backward)
        self._add(cached, backward=backward, cached=cached is not None)
        _log_caches(self._name + BACKWARD * backward, caches, "FxGraphCache")

    def _add(self, found: Lowered | None, *, backward: bool, cached: bool) -> None:
        """Remember one graph.

        Args:
            found: what a cache says of it; None for what the passes did.
            backward: whether it is a backward graph.
            cached: whether it came from a cache.
        """
        ran, lowered, whole = self.pipeline.take()
        known = found or lowered
        record = GraphRecord(
            name=self._name + BACKWARD * backward,
            selected={} if known is None else known.selected,
            refusals=() if known is None else tuple((*key, count) for key, count in known.refusals.items()),
            passes=ran,
            copies=0 if known is None else known.copies,
            seconds=sum(each.seconds for each in ran),
            cached=cached,
            digest=self.pipeline.plan.digest,
            whole=whole,
            place=self._place,
        )
        self.ops.update(record.selected)
        record = runtime.current().graphs.add(record)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", record)
            for line in record.details():
                logger.debug("  %s", line)


def _log_caches(name: str, before: Mapping[str, int], cache: str) -> None:
    """Log what one of torch's caches said since it was counted."""
    for what, count in torch_version.cache_counts().items():
        if what.startswith(cache) and count > before.get(what, 0):
            logger.debug("graph %s: %s", name, what)
