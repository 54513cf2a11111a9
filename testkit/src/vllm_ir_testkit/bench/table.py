"""A benchmark as rows of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vllm_ir_testkit.bench.results import Benchmark, Row

HEADINGS: Final = ("contender", "µs", "± IQR", "GB/s", "of copy", "x native", "x compiled", "")
"""Headings of one block of rows; the last column holds notes."""


def groups(benchmark: Benchmark) -> dict[str, list[Row]]:
    """Return the rows by op, dtype and size, with the words above each group."""
    found: dict[str, list[Row]] = {}
    for row in benchmark.rows:
        overload = " (in place)" if row.overload == "maybe_inplace" else ""
        found.setdefault(f"{row.op}{overload} {row.dtype} {row.size}", []).append(row)
    return found


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of one row."""
    timing = row.timing
    if timing is None:
        return (row.contender, "", "", "", "", "", "", row.note)
    return (
        row.contender,
        number(timing.median * 1e6),
        number(timing.spread / 2 * 1e6),
        number((row.rate or 0) / 1e9),
        "" if row.of_copy is None else f"{row.of_copy:.0%}",
        _times(row.over_native),
        _times(row.over_compiled),
        row.note,
    )


def number(value: float) -> str:
    """Return a number with three digits that matter."""
    if value >= 100:  # noqa: PLR2004 - three digits before the point
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"  # noqa: PLR2004 - two digits before the point


def _times(ratio: float | None) -> str:
    """Return a ratio as "2.1x"."""
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.1f}x"  # noqa: PLR2004 - three digits
