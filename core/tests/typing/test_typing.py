"""A strict type checker over code like a user's: what it sees, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NEEDS_TORCH = True
ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", ["user_code.py", "user_mistakes.py"])
def test_a_strict_checker_agrees(name: str) -> None:
    """Every type is the one that is asserted, and every mistake is refused (an ignore that is not needed fails)."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(HERE / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
