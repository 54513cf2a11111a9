"""The benchmark of compiling speaks while it runs, and its quick form measures what its table claims."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conftest import Workspace

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the benchmark needs torch")


@pytest.fixture
def benchmark_of_compiling(workspace: Workspace) -> ModuleType:
    """Give the script as a module."""
    file = workspace.root / "benchmarks" / "compile.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_compiling", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_pipe_gets_a_line_at_once(
    benchmark_of_compiling: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On stderr, so that the table alone is on stdout; a terminal has a bar instead."""
    benchmark_of_compiling.report("compiled")
    assert capsys.readouterr() == ("", "compiled\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    benchmark_of_compiling.report("compiled")
    assert capsys.readouterr() == ("", "")


def test_the_quick_form_has_pairs_enough_for_its_interval(benchmark_of_compiling: ModuleType) -> None:
    """The extremes of its pairs hold the median with 95 %: the chance that all lie on one side is twice 2**-pairs."""
    _, pairs, runs = benchmark_of_compiling.QUICK
    for count in (pairs, runs):
        assert 2 * 2**-count <= 0.05
    assert benchmark_of_compiling.interval(range(pairs)) == ((pairs - 1) / 2, 0, pairs - 1)
