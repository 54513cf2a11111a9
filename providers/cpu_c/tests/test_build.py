"""The build: one sentence where something is missing, the right flags, and a wheel for every Python of a platform."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def hook() -> Any:
    """Give the build script as a module."""
    pytest.importorskip("hatchling", reason="the build's own requirement")
    spec = importlib.util.spec_from_file_location("cpu_c_hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_compiler_the_build_says_so_in_one_sentence(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, what was looked for, and what to install."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(hook.CannotBuildError, match=r"needs a C\+\+17 compiler.*'g\+\+'.*apt-get install g\+\+"):
        hook.find_compiler()
    monkeypatch.setenv("CXX", "nonesuch -pipe")
    with pytest.raises(hook.CannotBuildError, match=r"'nonesuch' \(\$CXX\) was not found"):
        hook.find_compiler()


def test_without_the_headers_of_python_the_build_says_so(
    hook: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sentence names the folder and the package."""
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    with pytest.raises(hook.CannotBuildError, match=r"has no Python\.h.*python3-dev"):
        hook.find_headers()


def test_another_system_is_told_that_there_are_no_kernels(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No half-built module on a system that nobody has tried."""
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(hook.CannotBuildError, match="no kernels for win32"):
        hook.build(ROOT, ROOT / "nowhere")


def test_a_compiler_that_fails_is_quoted(hook: Any) -> None:
    """Its own words are in the message."""
    with pytest.raises(hook.CannotBuildError, match="failed with exit code 1"):
        hook.run([sys.executable, "-c", "raise SystemExit(1)"])


def test_nothing_contracts_or_reassociates(hook: Any) -> None:
    """Rounding is native's only without contraction and without fast-math, in every file."""
    flags = [*hook.FLAGS, *(flag for files in hook.SOURCES.values() for own in files.values() for flag in own)]
    assert "-ffp-contract=off" in flags
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations", "-fassociative-math"} & set(flags)


def test_every_source_is_built_somewhere(hook: Any) -> None:
    """A file of csrc that no machine compiles would be dead."""
    built = {name for files in hook.SOURCES.values() for name in files}
    assert built == {path.name for path in (ROOT / "csrc").glob("*.cpp")}


def test_a_wheel_is_for_every_python_and_holds_the_module(tmp_path: Path) -> None:
    """The stable ABI from 3.10 on, this platform, one compiled file, no source and no test."""
    pytest.importorskip("hatchling", reason="the build's own requirement")
    code = f"import hatchling.build; print(hatchling.build.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    wheel = tmp_path / f"vllm_ir_provider_cpu_c-0.1.0-cp310-abi3-{platform}.whl"
    names = {name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name}
    package = {f"vllm_ir_provider_cpu_c/{path.name}" for path in (ROOT / "src" / "vllm_ir_provider_cpu_c").glob("*.*")}
    assert names == package
    assert "vllm_ir_provider_cpu_c/_native.abi3.so" in names
