"""Triton's own launcher, on a driver that runs nothing: every argument arrives, in its place and its width."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "driver"

pytestmark = pytest.mark.triton


def test_every_argument_arrives(tmp_path: Path) -> None:
    """Pointers, sizes, strides, epsilon, grid, threads and stream of one launch of every op but one like another."""
    if shutil.which("gcc") is None or os.uname().sysname != "Linux":
        pytest.skip("the driver that runs nothing, and Triton's launcher, are made by gcc on Linux")
    stub = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", str(DRIVER / "libcuda.c"), "-o", str(stub)], check=True)
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "TRITON_LIBCUDA_PATH": str(tmp_path),
        "LD_LIBRARY_PATH": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER / "launching.py"), str(stub)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    wrong = json.loads(done.stdout.splitlines()[-1])["wrong"]
    assert {op: what for op, what in wrong.items() if what} == {}
    assert len(wrong) == 11
