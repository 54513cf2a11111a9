"""The picture of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir_testkit.bench import plot
from vllm_ir_testkit.bench.measuring import COPY
from vllm_ir_testkit.bench.results import Benchmark, Row, Timing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_written(tmp_path: Path, suffix: str) -> None:
    """With contenders that did not run at every size."""
    pytest.importorskip("matplotlib")
    timing = Timing(1e-6, 0.9e-6, 1.2e-6)
    rows = (
        Row("rms_norm", "default", "float32", "1x576", "native", timing, bytes=1000),
        Row("rms_norm", "default", "float32", "1x576", COPY, timing, bytes=1000),
        Row("rms_norm", "default", "float32", "1x576", "lacking", None, note="has none"),
        Row("rms_norm", "default", "float32", "16x576", "native", timing, bytes=16000),
    )
    file = tmp_path / f"bench{suffix}"
    plot.draw(Benchmark(rows, "cpu", 2, "2.13", 9), str(file))
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG") if suffix == ".png" else b"</svg>" in content
    assert len(content) > 5000
