"""What is installed: an entry point that is light, and a package that needs vLLM only where vLLM is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


def test_the_entry_point_imports_neither_torch_nor_vllm() -> None:
    """It is imported in every process of vLLM, also where this host is switched off."""
    code = (
        "import sys; import vllm_ir_host_vllm.plugin as p; assert callable(p.register);"
        "print([name for name in ('torch', 'vllm', 'vllm_ir') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)})
    assert done.stdout.strip() == "[]"


def test_no_module_imports_vllm_at_its_top() -> None:
    """So that the tests here run without it, and a start says what a vLLM lacks."""
    files = sorted(SOURCE.rglob("*.py"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(files) > 5
    assert [
        line for line in lines if line.startswith(("import vllm.", "from vllm.", "import vllm ", "from vllm "))
    ] == []
