"""What was measured, as frozen values."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call, over blocks.

    Attributes:
        median: of the blocks.
        low: the first quartile.
        high: the third quartile.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, blocks: Sequence[float]) -> Timing:
        """Return the timing of at least one block."""
        if len(blocks) == 1:
            return cls(blocks[0], blocks[0], blocks[0])
        low, median, high = statistics.quantiles(blocks, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def spread(self) -> float:
        """Seconds between the quartiles."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one size.

    Attributes:
        op: the op's name.
        overload: "default" or "maybe_inplace".
        dtype: torch's name.
        size: tokens x hidden size.
        contender: a provider, "native, compiled", "copy" or "clone".
        timing: None where it did not run.
        bytes: what a call reads and writes at least.
        copy: seconds in which this device copies as many bytes; None where nothing was measured.
        native: seconds of native in eager mode.
        compiled: seconds of compiled native; None where that was not asked for.
        note: why it did not run, or what is wrong with its result; empty otherwise.
    """

    op: str
    overload: str
    dtype: str
    size: str
    contender: str
    timing: Timing | None
    bytes: int = 0
    copy: float | None = None
    native: float | None = None
    compiled: float | None = None
    note: str = ""

    @property
    def rate(self) -> float | None:
        """Bytes per second."""
        return None if self.timing is None else self.bytes / self.timing.median

    @property
    def of_copy(self) -> float | None:
        """Its rate as a share of a copy's."""
        return self._ratio(self.copy)

    @property
    def over_native(self) -> float | None:
        """How many times as fast as native in eager mode."""
        return self._ratio(self.native)

    @property
    def over_compiled(self) -> float | None:
        """How many times as fast as compiled native."""
        return self._ratio(self.compiled)

    def _ratio(self, seconds: float | None) -> float | None:
        """Return how many times as fast as something else."""
        return None if self.timing is None or seconds is None else seconds / self.timing.median

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold; times in microseconds, rates in 1e9 bytes per second."""
        timing = self.timing
        return {
            "op": self.op,
            "overload": self.overload,
            "dtype": self.dtype,
            "size": self.size,
            "contender": self.contender,
            "median_us": None if timing is None else round(timing.median * 1e6, 3),
            "quartiles_us": None if timing is None else [round(timing.low * 1e6, 3), round(timing.high * 1e6, 3)],
            "bytes": self.bytes,
            "gb_per_s": None if self.rate is None else round(self.rate / 1e9, 3),
            "of_copy": _rounded(self.of_copy),
            "over_native": _rounded(self.over_native),
            "over_compiled": _rounded(self.over_compiled),
            "note": self.note or None,
        }


@dataclass(frozen=True, slots=True)
class Benchmark:
    """All rows of one run.

    Attributes:
        rows: in the order of ops, dtypes, sizes and contenders.
        device: the device in words.
        threads: how many threads torch uses on the CPU.
        torch: torch's version.
        blocks: how many blocks each median is of.
        load: how many other processes wanted a CPU before it began, over the last minute; None where nobody knows.
    """

    rows: tuple[Row, ...]
    device: str
    threads: int
    torch: str
    blocks: int
    load: float | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other work took so much of the machine that the figures say little."""
        return self.load is not None and self.load > (os.cpu_count() or 1) / 2

    @property
    def measured(self) -> bool:
        """Whether anything was timed."""
        return any(row.timing is not None for row in self.rows)

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "device": self.device,
            "threads": self.threads,
            "torch": self.torch,
            "blocks": self.blocks,
            "load": self.load,
            "rows": [row.describe() for row in self.rows],
        }


def _rounded(value: float | None) -> float | None:
    """Return a ratio with three digits behind the point."""
    return None if value is None else round(value, 3)
