"""The kernels run: `interpreted/` in Triton's interpreter, in a process of its own, since the flag changes Triton."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

COMPILER = "3.9."
FOLDER = Path(__file__).parent / "interpreted"
FILES = {
    "interpreted_kernels.py": 47,
    "interpreted_faults.py": 12,
    "interpreted_formats.py": 16,
    "interpreted_quantization.py": 73,
    "interpreted_quant_faults.py": 23,
}


@pytest.mark.triton
@pytest.mark.skipif(
    find_spec("triton") is not None and not metadata.version("triton").startswith(COMPILER),
    reason=f"the interpreter is made exact for Triton {COMPILER}*: pip install 'vllm-ir-provider-triton[test]'",
)
@pytest.mark.parametrize("file", FILES)
def test_interpreted(file: str) -> None:
    """Every test in the file passes and none is skipped; what fails is shown."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "python_files=interpreted_*.py"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([*command, str(FOLDER / file)], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    count = re.search(r"^(\d+) passed(?:, \d+ warnings?)? in ", done.stdout, re.MULTILINE)
    assert count is not None, done.stdout[-400:]
    assert int(count[1]) >= FILES[file]
