"""Trying what a provider offers: the fastest right launch is kept, and nothing that is not worth it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import Unsupported, implements, ops
from vllm_ir_testkit.bench import tuning
from vllm_ir_testkit.bench.requests import Size
from vllm_ir_testkit.cli import bench

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from vllm_ir_testkit import TestManager
    from vllm_ir_testkit.bench.clocks import Runner

NOW = ["slow"]
SECONDS = {"slow": 2e-3, "fast": 1e-4, "alike": 1.98e-3, "wrong": 1e-5}


def small(x: Tensor) -> bool | Unsupported:
    """Take rows of 64 alone."""
    return x.shape[-1] == 128 or Unsupported("rows of 64 only")


@implements("silu_and_mul", provider="tunable", supports_args=small)
def tunable(x: Tensor) -> Tensor:
    """Return what native returns, unless the launch in use is the wrong one."""
    out: Tensor = ops.silu_and_mul.impls["native"].impl_fn(x)
    return out * 2 if NOW[-1] == "wrong" else out


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls be made, and take as long as the launch in use has it: a busy machine would decide otherwise."""

    def seconds_per_call(runner: Runner, device: torch.device) -> float:
        """Make a round of calls."""
        del device
        runner.prepare()
        runner.run()
        return SECONDS[NOW[-1]]

    monkeypatch.setattr(tuning, "seconds_per_call", seconds_per_call)


class Fake:
    """Offers launches.

    Attributes:
        offered: the launches.
        kept: what was kept, and where.
    """

    def __init__(self, *offered: str) -> None:
        self.offered = offered
        self.kept: list[tuple[tuple[str, ...], Path | None]] = []

    def candidates(self, op: str, args: Sequence[Any]) -> Sequence[str]:
        """Return the launches for silu_and_mul."""
        del args
        return self.offered if op == "silu_and_mul" else ()

    @contextlib.contextmanager
    def using(self, candidate: str) -> Iterator[None]:
        """Launch so."""
        NOW.append(candidate)
        yield
        NOW.pop()

    def keep(self, chosen: Sequence[str], path: Path | None = None) -> Path:
        """Remember what was kept."""
        self.kept.append((tuple(chosen), path))
        return path or Path("table.json")


def run(tuner: Fake, hidden: int = 64) -> tuple[tuple[tuning.Tuned, ...], tuple[Path, ...]]:
    """Tune silu_and_mul at one size."""
    return tuning.tune([ops.silu_and_mul], {"tunable": tuner}, [Size(2, hidden)], ["float32"], blocks=2)


def test_the_fastest_is_kept(manager: TestManager) -> None:
    """Once for all sizes, and what is shown says what it was and is."""
    manager.add(tunable)
    tuner = Fake("slow", "alike", "fast")
    (row,), files = run(tuner)
    assert tuner.kept == [(("fast",), None)]
    assert files == (Path("table.json"),)
    assert (row.before, row.after, row.tried, row.note) == ("slow", "fast", 3, "")
    assert row.seconds == (2e-3, 1e-4)
    assert row.describe()["median_us"] == [2000.0, 100.0]
    assert NOW == ["slow"]


def test_what_is_hardly_faster_is_not_kept(manager: TestManager) -> None:
    """A table of noise would change from day to day."""
    manager.add(tunable)
    tuner = Fake("slow", "alike")
    (row,), files = run(tuner)
    assert (row.after, tuner.kept, files) == ("slow", [], ())


def test_a_launch_with_wrong_values_is_never_kept(manager: TestManager) -> None:
    """However fast; it is named."""
    manager.add(tunable)
    tuner = Fake("slow", "wrong")
    (row,), _ = run(tuner)
    assert (row.after, row.tried, tuner.kept) == ("slow", 1, [])
    assert row.note.startswith("wrong: not native's values")


def test_what_does_not_run_says_why(manager: TestManager) -> None:
    """Refused arguments, an op without a choice, a size that there is not."""
    manager.add(tunable)
    tuner = Fake("slow", "fast")
    assert run(tuner, 65)[0][0].note == "rows of 64 only"
    assert run(Fake())[0][0].note == "offers no choice"
    lacking, _ = tuning.tune([ops.gelu_and_mul], {"tunable": tuner}, [Size(2, 64)], ["float32"], blocks=1)
    assert lacking[0].note == "has no gelu_and_mul"
    assert tuner.kept == []


def test_only_providers_that_were_asked_for_are_imported() -> None:
    """An entry point of another provider is left alone."""
    assert tuning.tuners(["native", "nobody"]) == {}


QUICK = ["--op", "silu_and_mul", "--shapes", "2x64", "--dtypes", "f32", "--blocks", "2", "--tune"]


def test_the_command_line(
    manager: TestManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A table for people, JSON for programs, and a file of one's own."""
    manager.add(tunable)
    tuner = Fake("slow", "fast")
    monkeypatch.setattr(tuning, "tuners", lambda _: {"tunable": tuner})
    assert bench.run(QUICK) == 0
    out = capsys.readouterr().out
    assert "written to table.json" in out
    assert "fastest" in out
    assert bench.run([*QUICK[:-1], "--tune-into", str(tmp_path / "own.json"), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["files"] == [str(tmp_path / "own.json")]
    assert content["tuned"][0]["after"] == "fast"
    assert tuner.kept[-1][1] == tmp_path / "own.json"


def test_the_command_line_with_nothing_to_try(
    manager: TestManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 3, and what is missing."""
    del manager
    monkeypatch.setattr(tuning, "tuners", lambda _: {})
    assert bench.run(QUICK) == 3
    assert "No provider here offers launches" in capsys.readouterr().out


def test_the_command_line_fails_for_wrong_values(manager: TestManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a benchmark does."""
    manager.add(tunable)
    monkeypatch.setattr(tuning, "tuners", lambda _: {"tunable": Fake("slow", "wrong")})
    assert bench.run(QUICK) == 1


def test_the_command_line_where_all_refuse(
    manager: TestManager, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is shown, exit code 3, and nothing is said of what was not tried."""
    manager.add(tunable)
    monkeypatch.setattr(tuning, "tuners", lambda _: {"tunable": Fake("slow")})
    assert bench.run([*QUICK[:3], "2x65", *QUICK[4:]]) == 3
    out = capsys.readouterr().out
    assert "rows of 64 only" in out
    assert "Nothing was written" not in out
