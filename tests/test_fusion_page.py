"""The page about fusions is one session, and prints the texts that stand behind its blocks: graphs before and after."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Workspace

NEEDS_TORCH = True


def test_the_blocks_of_the_page_print_the_texts_behind_them(workspace: Workspace, tmp_path: Path) -> None:
    """All blocks run in their order in one new process."""
    page = (workspace.root / "docs" / "fusion.md").read_text(encoding="utf-8")
    file = tmp_path / "session.py"
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)), encoding="utf-8")
    # Caches of its own: of a graph that an earlier run has left there no pass would be told.
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL))


def test_the_page_shows_every_fusion(workspace: Workspace) -> None:
    """Each has a row, and its op is seen in a graph."""
    from vllm_ir.compile.passes import fusions

    page = (workspace.root / "docs" / "fusion.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert [row for row in rows if row in fusions.NAMES] == list(fusions.NAMES)
    shown = " ".join(re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL))
    for op in (
        "fused_add_rms_norm_static_quant_fp8",
        "silu_and_mul_group_quant_fp8",
        "fused_qk_norm_rope",
        "fused_add_rms_norm",
    ):
        assert op in shown
