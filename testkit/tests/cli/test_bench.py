"""`vllm-ir bench` as its user runs it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from vllm_ir.cli.main import main
from vllm_ir_testkit.cli import bench

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir_testkit import TestManager

QUICK = ["--op", "silu_and_mul", "--shapes", "2x64,3x64", "--dtypes", "f32", "--blocks", "2", "--no-compiled"]


def test_a_table_for_people(manager: TestManager, capsys: pytest.CaptureFixture[str]) -> None:
    """A block of rows per size, with native, a copy and a clone."""
    del manager
    assert bench.run(QUICK) == 0
    out = capsys.readouterr().out
    assert "silu_and_mul float32 2x64" in out
    assert "contender  µs" in out
    assert "native" in out
    assert "clone" in out


def test_json_for_programs_and_a_plot(manager: TestManager, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """All figures, and a picture."""
    del manager
    pytest.importorskip("matplotlib")
    assert bench.run([*QUICK, "--json", "--plot", str(tmp_path / "bench.svg")]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["version"] == "1"
    native = content["rows"][0]
    assert (native["contender"], native["size"], native["over_native"]) == ("native", "2x64", 1.0)
    assert native["bytes"] == 2 * (128 + 64) * 4
    assert native["median_us"] > 0
    assert "</svg>" in (tmp_path / "bench.svg").read_text(encoding="utf-8")


def test_a_size_that_no_call_has_ends_with_three(manager: TestManager, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was timed, and the reason is shown."""
    del manager
    arguments = ["--op", "rotary_embedding", "--shapes", "2x7", "--dtypes", "f32", "--no-compiled"]
    assert bench.run(arguments) == 3
    assert "no such call" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shapes", "1*x"], "--shapes '1*x' cannot be followed"),
        (["--shapes", ""], "--shapes '' cannot be followed"),
        (["--dtypes", "int8"], "--dtypes 'int8' cannot be followed"),
        (["--op", "rms_nrm"], "Did you mean 'rms_norm'"),
        (["--providers", "natve"], "Did you mean 'native'"),
        (["--plot", "bench.pdf"], "ends in .png or .svg"),
        (["--plot", "nowhere/bench.png"], "in a folder that exists"),
    ],
)
def test_what_cannot_be_followed_is_told_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """Exit code 2 and one sentence."""
    assert main(["bench", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_missing_matplotlib_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to install, and before anything is measured."""
    monkeypatch.setattr("vllm_ir_testkit.bench.plot.find_spec", lambda _: None)
    assert main(["bench", *QUICK, "--plot", "bench.png"]) == 2
    assert "pip install 'vllm-ir-testkit[plot]'" in capsys.readouterr().err
