"""The page about other compilers is two sessions, and each prints what its comments say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Workspace

NEEDS_TORCH = True
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
MISSING = [name for name in PACKAGES if find_spec(name) is None]


def blocks(workspace: Workspace, label: str) -> str:
    """Return the code blocks of one session, by what stands behind the language."""
    page = (workspace.root / "docs" / "other_compilers.md").read_text(encoding="utf-8")
    found = re.findall(rf"```python{label}\n(.*?)```", page, flags=re.DOTALL)
    assert found
    return "\n".join(found)


def told(session: str) -> list[str]:
    """Return what the comments of a session say it prints; one behind a loop is said once."""
    return re.findall(r"print\(.*\)(?:  |\n *)# (.*)$", session, flags=re.MULTILINE)


def run(session: str, folder: Path) -> list[str]:
    """Run a session in a new process and return what it printed."""
    file = folder / "session.py"
    file.write_text(session, encoding="utf-8")
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}; `nox -s onnx` has them")
def test_onnx(workspace: Workspace, tmp_path: Path) -> None:
    """Ops become standard operators, and a reference and a runtime give eager's results."""
    session = blocks(workspace, " onnx")
    printed = [line for line in run(session, tmp_path) if not line.startswith("[torch.onnx]")]
    *wanted, last = told(session)
    assert printed == [*wanted, last, last]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler, g++")
def test_aotinductor(workspace: Workspace, tmp_path: Path) -> None:
    """A packaged block runs in a process that knows nothing of ours."""
    for label in ("", " elsewhere"):
        session = blocks(workspace, label)
        assert run(session, tmp_path) == told(session)
