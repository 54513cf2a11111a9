"""Counts of calls, refusals and graphs for Prometheus, from one process or from the many of a server.

What is counted is decided by VLLM_IR_COUNTERS and costs what it costs without an exporter: a scrape, or now and then a
thread, reads the counts that `vllm_ir.report()` shows. `prometheus_client` is the extra `vllm-ir[prometheus]`.

A server with workers sets PROMETHEUS_MULTIPROC_DIR for all of them; the library then keeps the values of each process
in a file of its own, and whoever answers scrapes adds them up with its `MultiProcessCollector`. It sees only values of
the library's own metrics, so each process writes its counts into those: what was counted since it last did.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from vllm_ir import reporting, runtime
from vllm_ir.errors import MalformedVariable, PrometheusMissing
from vllm_ir.log import logger
from vllm_ir.once import Once

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client import CollectorRegistry, Counter
    from prometheus_client.metrics_core import Metric

INTERVAL: Final = 5.0
"""Seconds after which a worker writes what it has counted."""

REASONS: Final = 100
"""How many reasons of one provider for one op are told apart; a predicate may put sizes in its sentence."""

OTHERS: Final = "other reasons"
"""Stands for all further ones."""

FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Variable of the library with the folder that all processes of a server share."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name without the ending `_total`, what it counts, and its labels."""

    name: str
    text: str
    labels: tuple[str, ...]


CALLS: Final = Family("vllm_ir_calls", "Eager calls of an op that a provider ran.", ("op", "provider"))
REFUSALS: Final = Family(
    "vllm_ir_refusals", "Eager calls of an op that a provider refused.", ("op", "provider", "reason")
)
GRAPHS: Final = Family(
    "vllm_ir_graphs", "Compiled graphs in which a provider runs an op; their calls are not counted.", ("op", "provider")
)

Counts = dict[Family, "dict[tuple[str, ...], int]"]
"""What is counted so far: by metric, then by labels."""


def register_collector(registry: CollectorRegistry | None = None, *, interval: float = INTERVAL) -> None:
    """Let Prometheus see what this process counts; in a server with workers each of them calls it.

    Where the library is in its multiprocess mode the values go to files, `registry` takes no part, further calls change
    nothing, and a forked process goes on by itself. What a process that is killed counted since it last wrote is lost.

    Args:
        registry: where a single process is scraped; the library's own when None.
        interval: seconds between two writings in multiprocess mode.

    Raises:
        PrometheusMissing: the library is not installed.
        MalformedVariable: PROMETHEUS_MULTIPROC_DIR names no folder.
        ValueError: the registry has these metrics already.
    """
    try:
        from prometheus_client import REGISTRY, values
    except ImportError:
        raise PrometheusMissing(wanted="vllm_ir.prometheus.register_collector") from None
    if not runtime.current().counting:
        logger.warning("Calls are exported to Prometheus but not counted; set VLLM_IR_COUNTERS=1 before start.")
    # The library decides by the variable once, when it is imported.
    if getattr(values.ValueClass, "_multiprocess", False):
        folder = os.environ.get(FOLDER, "")
        if not os.path.isdir(folder):  # noqa: PTH112 - what the library itself asks
            raise MalformedVariable(variable=FOLDER, value=folder, wanted="an existing folder, empty at start")
        _PUBLISHER.get(lambda: Publisher.start(interval))
        return
    if os.environ.get(FOLDER):
        logger.warning("%s was set after prometheus_client was imported, so that workers are not seen.", FOLDER)
    (REGISTRY if registry is None else registry).register(cast("Any", Collector()))


def publish() -> None:
    """Write now what this process counted since it last did; for a worker that is about to end.

    Nothing happens where values do not go to files.
    """
    publisher = _PUBLISHER.result
    if publisher is not None:
        publisher.publish()


class Collector:
    """What a single process is scraped by."""

    def describe(self) -> Iterator[Metric]:
        """Give the metrics without values, so that a registry sees a second collector."""
        yield from self._families({})

    def collect(self) -> Iterator[Metric]:
        """Give the metrics with what is counted so far."""
        yield from self._families(count())

    def _families(self, counts: Mapping[Family, Mapping[tuple[str, ...], int]]) -> Iterator[Metric]:
        """Give every metric with these values."""
        from prometheus_client.core import CounterMetricFamily

        for family in (CALLS, REFUSALS, GRAPHS):
            metric = CounterMetricFamily(family.name, family.text, labels=family.labels)
            for labels, value in counts.get(family, {}).items():
                metric.add_metric(labels, value)
            yield metric


class Publisher:
    """Writes what a worker counts into the library's own metrics.

    Args:
        interval: seconds between two writings.
    """

    def __init__(self, interval: float) -> None:
        from prometheus_client import Counter

        self._interval = interval
        self._warned = False
        self._lock = threading.Lock()
        self._told: dict[tuple[Family, tuple[str, ...]], int] = {}
        # In no registry: whoever is scraped adds up files, and would count its own values twice.
        self._metrics: dict[Family, Counter] = {
            family: Counter(family.name, family.text, family.labels, registry=None)
            for family in (CALLS, REFUSALS, GRAPHS)
        }

    @classmethod
    def start(cls, interval: float) -> Publisher:
        """Return one that writes again and again, at the end of the process, and in every process forked from it."""
        from multiprocessing import util

        made = cls(interval)
        made._watch()
        atexit.register(made._try)
        made._at_end()
        util.register_after_fork(made, Publisher._at_end)
        os.register_at_fork(before=made._hold, after_in_parent=made._lock.release, after_in_child=made._go_on)
        return made

    def _at_end(self) -> None:
        """Write at the end of a process of multiprocessing, which ends without what atexit holds."""
        from multiprocessing import util

        util.Finalize(self, self._try, exitpriority=0)

    def publish(self) -> None:
        """Write what was counted since it was last written."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        """Add to each metric what is new; a count that is lower than before was begun anew."""
        for family, counts in count().items():
            for labels, value in counts.items():
                before = self._told.get((family, labels), 0)
                new = value - before if value >= before else value
                self._told[family, labels] = value
                if new:
                    self._metrics[family].labels(*labels).inc(new)

    def _watch(self) -> None:
        """Start the thread that writes."""
        threading.Thread(target=self._keep_on, name="vllm_ir prometheus", daemon=True).start()

    def _keep_on(self) -> None:
        """Write until the process ends; a disk that does not take it is one warning."""
        pause = threading.Event()
        while not pause.wait(self._interval):
            self._try()

    def _try(self) -> None:
        """Write, or warn once."""
        try:
            self.publish()
        except OSError as error:
            if not self._warned:
                logger.warning("Counts for Prometheus cannot be written to %s: %s", os.environ.get(FOLDER), error)
            self._warned = True

    def _hold(self) -> None:
        """Write everything before a fork, so that the child has nothing of its parent's to write."""
        self._lock.acquire()
        try:
            self._write()
        except OSError as error:
            logger.debug("Counts for Prometheus were not written before a fork: %s", error)

    def _go_on(self) -> None:
        """Begin in a forked process, which has no thread of its parent's and a file of its own."""
        self._lock.release()
        self._watch()


_PUBLISHER: Final[Once[Publisher]] = Once()


def count() -> Counts:
    """Return what this process has counted so far; beyond a hundred reasons of one provider the rest is one."""
    told = reporting.tally()
    refusals: dict[tuple[str, ...], int] = {}
    seen: dict[tuple[str, str], int] = {}
    for (op, provider, reason), number in told.refusals.items():
        place = seen[op, provider] = seen.get((op, provider), 0) + 1
        key = (op, provider, reason if place <= REASONS else OTHERS)
        refusals[key] = refusals.get(key, 0) + number
    return {CALLS: _widened(told.calls), REFUSALS: refusals, GRAPHS: _widened(told.graphs)}


def _widened(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, ...], int]:
    """Return counts by labels of any number."""
    return {(op, provider): number for (op, provider), number in counts.items()}
