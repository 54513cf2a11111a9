"""What was measured, and what follows from it."""

from __future__ import annotations

import pytest
from vllm_ir_testkit.bench import table
from vllm_ir_testkit.bench.results import Benchmark, Row, Timing

ROW = Row(
    "rms_norm",
    "default",
    "float32",
    "1x576",
    "some",
    Timing.of([1e-6, 2e-6, 3e-6]),
    bytes=6000,
    copy=1e-6,
    native=8e-6,
    compiled=3e-6,
)


def test_median_and_quartiles() -> None:
    """One block is its own median."""
    timing = Timing.of([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (timing.low, timing.median, timing.high, timing.spread) == (2.0, 3.0, 4.0, 2.0)
    assert Timing.of([2.0]).spread == 0


def test_rates_and_ratios() -> None:
    """Bytes over seconds, and how many times as fast."""
    assert ROW.rate == pytest.approx(3e9)
    assert (ROW.of_copy, ROW.over_native, ROW.over_compiled) == (0.5, 4.0, 1.5)
    assert ROW.describe()["gb_per_s"] == 3.0


def test_cells() -> None:
    """Three digits that matter; a row that did not run shows why."""
    assert table.cells(ROW) == ("some", "2.00", "0.50", "3.00", "50%", "4.00x", "1.50x", "")
    refused = Row("rms_norm", "default", "float32", "1x576", "other", None, note="has no rms_norm")
    assert table.cells(refused) == ("other", "", "", "", "", "", "", "has no rms_norm")
    assert [table.number(value) for value in (1234.5, 123.4, 12.34, 1.234)] == ["1,234", "123", "12.3", "1.23"]


def test_a_busy_machine_is_told() -> None:
    """Figures from a machine that does something else say little."""
    assert Benchmark((ROW,), "cpu", 2, "2.13", 9, load=1e9).disturbed
    assert not Benchmark((ROW,), "cpu", 2, "2.13", 9, load=0.0).disturbed
    assert not Benchmark((ROW,), "cpu", 2, "2.13", 9).disturbed
