"""The page about what is wrong: its session prints what it says, and its tables are what the command does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from vllm_ir.diagnosis import children

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Workspace

SHOWN = re.compile(r"print\(.*\)  # (.*)$", flags=re.MULTILINE)

needs_both = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "prometheus_client")),
    reason="needs torch and prometheus_client, which are not both installed here",
)


@pytest.fixture(scope="module")
def page(workspace: Workspace) -> str:
    """Give the page."""
    return (workspace.root / "docs" / "doctor.md").read_text(encoding="utf-8")


@needs_both
def test_the_blocks_of_the_page_print_what_it_says(page: str, tmp_path: Path) -> None:
    """All blocks run in their order in one new process that counts."""
    session = "\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL))
    (tmp_path / "session.py").write_text(session, encoding="utf-8")
    variables = {**os.environ, "VLLM_IR_COUNTERS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, "session.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=variables, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted = SHOWN.findall(session)
    assert len(wanted) == session.count("print(") == 3
    assert done.stdout.splitlines() == wanted


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table with this heading."""
    table = page.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_sections_are_those_that_are_printed(page: str, tmp_path: Path) -> None:
    """In this order; a section without content is left out, and the page shows one of each."""
    (tmp_path / "vllm-ir.toml").write_text("", encoding="utf-8")
    variables = {**os.environ, "VLLM_IR_NOBODY_KNOWS": "1", "VLLM_IR_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "vllm_ir", "doctor"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    printed = [line.removeprefix("## ") for line in done.stdout.splitlines() if line.startswith("## ")]
    told = [cells[0] for cells in rows(page, "section")]
    assert [title for title in told if title != "probe"] == printed


def test_the_keys_are_those_of_the_answer(workspace: Workspace, tmp_path: Path) -> None:
    """What the page about the command line promises to programs."""
    commands = (workspace.root / "docs" / "commands.md").read_text(encoding="utf-8")
    told = re.search(r"^`doctor`\n: (.*?)\n\n", commands, flags=re.MULTILINE | re.DOTALL)
    assert told
    command = [sys.executable, "-m", "vllm_ir", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    for key in set(json.loads(done.stdout)) - {"version"}:
        assert f"`{key}`" in told[1], key


def test_the_default_limit_is_the_one_it_names(page: str) -> None:
    """Seconds of one step."""
    assert f"`--timeout SECONDS` (default {children.TIMEOUT:g})" in page
