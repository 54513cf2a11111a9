"""What the kit costs whoever runs pytest for something else, and what it gives to whoever asks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    """A pytest run that has nothing to do with vllm-ir pays for one small module."""
    code = (
        "import sys, pytest; before = set(sys.modules); import vllm_ir_testkit.plugin\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['vllm_ir_testkit']"


def test_a_run_without_a_provider_is_as_it_was(tmp_path: Path) -> None:
    """No section, no test, no torch."""
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_it():\n    assert 'torch' not in sys.modules\n", encoding="utf-8"
    )
    done = pytest_run(tmp_path, "-q")
    assert done.returncode == 0, done.stdout
    assert "vllm-ir" not in done.stdout


def test_the_suite_judges_a_provider_and_writes_a_report(tmp_path: Path) -> None:
    """One test per op and check, a table at the end, JSON where asked for."""
    done = pytest_run(
        tmp_path,
        "--pyargs",
        "vllm_ir_testkit",
        "--vllm-ir-provider=native",
        "--vllm-ir-op=silu_and_mul",
        "--vllm-ir-report=report.json",
        "-q",
        "-k",
        "manifest or zero_tokens or cuda_graph or run_here",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "vllm-ir conformance of native" in done.stdout
    assert "| zero_tokens | ✓ |" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["version"] == "1"
    assert {each["check"] for each in report["outcomes"]} == {"manifest", "zero_tokens", "cuda_graph"}


def test_the_suite_without_a_provider_says_how_to_name_one(tmp_path: Path) -> None:
    """A skip with a sentence, not an error."""
    done = pytest_run(tmp_path, "--pyargs", "vllm_ir_testkit", "-rs")
    assert done.returncode == 0
    assert "--vllm-ir-provider=NAME" in done.stdout


def test_an_unknown_provider_is_a_usage_error(tmp_path: Path) -> None:
    """The sentence of the error, and pytest's code for usage."""
    done = pytest_run(tmp_path, "--pyargs", "vllm_ir_testkit", "--vllm-ir-provider=natve")
    assert "Did you mean 'native'" in done.stdout + done.stderr
    assert done.returncode != 0
