"""What is kept of calls: counts, refusals with their reasons, and one warning per reason.

A candidate's refusals come here from its chain; nothing here decides who runs.
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

from vllm_ir.dispatch import BrokenPredicate, read_answer, read_exception
from vllm_ir.errors import PredicateFailed, RefusedArguments
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir.priority import Entry
    from vllm_ir.verdict import Unsupported


class Counter:
    """A count that several threads may raise at once without losing one, and without a lock on the hot path."""

    def __init__(self) -> None:
        self._ticks = itertools.count()
        self._reads = 0
        self._lock = threading.Lock()
        self.raise_by_one: Callable[[], int] = self._ticks.__next__

    def read(self) -> int:
        """Return the count; reading takes a tick of its own, which is not counted."""
        with self._lock:
            value = next(self._ticks) - self._reads
            self._reads += 1
            return value


class Ledger:
    """The counts of one op, and the refusals seen, for the whole process."""

    def __init__(self, op: str) -> None:
        self.op = op
        self._calls: dict[str, Counter] = {}
        self._refusals: dict[tuple[str, str], Counter] = {}
        self._warned: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def calls_of(self, provider: str) -> Counter:
        """Return the counter of one provider."""
        with self._lock:
            return self._calls.setdefault(provider, Counter())

    def refuse(self, provider: str, reason: str) -> None:
        """Count one refusal."""
        with self._lock:
            counter = self._refusals.setdefault((provider, reason), Counter())
        counter.raise_by_one()

    def warn_once(self, provider: str, reason: str, message: str) -> None:
        """Log a warning the first time that a provider gives a reason."""
        with self._lock:
            if (provider, reason) in self._warned:
                return
            self._warned.add((provider, reason))
        logger.warning("%s", message)

    def calls(self) -> Mapping[str, int]:
        """Return how many calls each provider ran."""
        with self._lock:
            counters = dict(self._calls)
        counts = {provider: counter.read() for provider, counter in counters.items()}
        return {provider: count for provider, count in counts.items() if count}

    def refusals(self) -> tuple[tuple[str, str, int], ...]:
        """Return provider, reason and number of the refusals seen."""
        with self._lock:
            counters = dict(self._refusals)
        return tuple((provider, reason, counter.read()) for (provider, reason), counter in counters.items())


class Witness:
    """Takes what one candidate's predicate said in one chain.

    Args:
        ledger: where the op's counts are kept.
        entry: the candidate's place; a refusal by one that a user named is worth a warning.
        strict: raise instead.
        trace: log each refusal and selection.
        counters: count each refusal.

    Attributes:
        seen: reasons that need not be told again; stays empty where each refusal counts.
        told: not empty once a refusal without a reason need not be told again; asking it is cheaper than asking a set.
    """

    def __init__(self, ledger: Ledger, entry: Entry, *, strict: bool, trace: bool, counters: bool) -> None:
        self._ledger = ledger
        self._entry = entry
        self._strict = strict
        self._trace = trace
        self._every = strict or trace or counters
        self.seen: set[str] = set()
        self.told: list[str] = []

    def raised(self, error: Exception) -> Unsupported:
        """Return the refusal that an exception out of the predicate means.

        Raises:
            PredicateFailed: strict mode is on.
        """
        refusal = read_exception(error)
        if self._strict:
            raise PredicateFailed(op=self._ledger.op, provider=self._entry.provider, reason=refusal.reason) from error
        return refusal

    def refused(self, answer: object) -> None:
        """Record a refusal, or an answer that is no verdict.

        Raises:
            PredicateFailed: strict mode is on and the answer is no verdict.
            RefusedArguments: strict mode is on and a user named the provider.
        """
        refusal = read_answer(answer)
        if refusal is None:
            return
        op, provider, reason = self._ledger.op, self._entry.provider, refusal.reason
        broken = isinstance(refusal, BrokenPredicate)
        if self._strict and broken:
            raise PredicateFailed(op=op, provider=provider, reason=reason)
        if self._strict and self._entry.required:
            raise RefusedArguments(op=op, provider=provider, reason=reason, layer=self._entry.source)
        self._ledger.refuse(provider, reason)
        if self._trace:
            logger.debug("op %s: %s refuses: %s", op, provider, reason)
        if not self._every:
            self.seen.add(reason)
            if answer is False:
                self.told[:] = [reason]
        if broken or self._entry.required:
            named = f", named by {self._entry.source}," if self._entry.required else ""
            self._ledger.warn_once(
                provider, reason, f"op {op}: provider {provider}{named} refuses: {reason}. The next one takes the call."
            )

    def counted(self) -> Callable[[], object]:
        """Return what to call before the implementation runs."""
        count = self._ledger.calls_of(self._entry.provider).raise_by_one
        if not self._trace:
            return count
        op, provider = self._ledger.op, self._entry.provider

        def traced() -> None:
            """Count and log one call."""
            count()
            logger.debug("op %s: %s runs", op, provider)

        return traced
