"""The page about compiling is one session, and prints what its comments say."""

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
SHOWN = re.compile(r"print\(.*\)  # (.*)$", flags=re.MULTILINE)


def test_the_blocks_of_the_page_print_what_it_says(workspace: Workspace, tmp_path: Path) -> None:
    """All blocks run in their order in one new process."""
    page = (workspace.root / "docs" / "compile.md").read_text(encoding="utf-8")
    session = "\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    file = tmp_path / "session.py"
    file.write_text(session, encoding="utf-8")
    # Caches of its own: of a graph that an earlier run has left there no pass would be told.
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=variables)
    assert done.returncode == 0, done.stderr
    wanted = SHOWN.findall(session)
    assert len(wanted) == session.count("print(")
    assert done.stdout.splitlines() == wanted
