"""What the README shows is what happens: its console blocks and its Python session are run and compared.

The first two commands are not run here: they install and run everything, which is what CI does.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from vllm_ir.platforms import detect

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MACHINE = re.compile(r"cpu: .*, torch \S+")
# A copy of the core behind the one in use is this machine's business, not the README's.
HIDDEN = re.compile(r"  \S+: version \S+ in .*(?:\n    .*)*\n\n")

needs_cpu = pytest.mark.skipif(not detect().is_cpu(), reason="the README shows a machine without a GPU")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="the README's session needs torch")
needs_example = pytest.mark.skipif(
    any(
        find_spec(f"vllm_ir_{each}") is None
        for each in ("first_provider", "provider_cpu_c", "provider_vllm_c", "provider_aiter", "provider_triton")
    ),
    reason="the README's tour needs the example provider, cpu_c, vllm_c, aiter and triton installed",
)


def console_blocks() -> list[tuple[str, str]]:
    """Return each command of the README's console blocks with the output shown below it."""
    blocks = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    return [(command, output) for command, _, output in (part.partition("\n") for part in parts)]


def neutral(text: str) -> str:
    """Return an output without what differs between machines."""
    return HIDDEN.sub("", MACHINE.sub("THIS MACHINE", text)).strip()


@needs_cpu
@needs_torch
@needs_example
@pytest.mark.parametrize(("command", "shown"), console_blocks(), ids=[command for command, _ in console_blocks()])
def test_a_command_prints_what_the_readme_shows(command: str, shown: str, tmp_path: Path) -> None:
    """A reader who types it sees the same, the name of the machine apart."""
    program, *arguments = shlex.split(command)
    assert program == "vllm-ir"
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ir", *arguments],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert neutral(done.stdout + done.stderr) == neutral(shown)


def named_answers() -> list[tuple[str, str]]:
    """Return each command of the providers' READMEs about a named machine, with the provider said to run there."""
    pages = [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("providers/*/README.md"))]
    return [
        found
        for page in pages
        for found in re.findall(r"^(.*vllm-ir explain .*--platform.*?) +# > (.+)$", page, flags=re.MULTILINE)
    ]


@needs_example
@pytest.mark.parametrize(("command", "provider"), named_answers())
def test_a_provider_s_readme_says_who_runs_on_a_named_machine(command: str, provider: str, tmp_path: Path) -> None:
    """With everything installed that the main README installs, the row of the one that runs has that name."""
    words = shlex.split(command)
    place = words.index("vllm-ir")
    variables = dict(word.split("=", 1) for word in words[:place])
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ir", *words[place + 1 :]],
        env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith(">")] == [provider]


@needs_torch
def test_the_session_does_what_the_readme_shows(tmp_path: Path) -> None:
    """The Python session is a doctest, run in a process of its own since it registers an op."""
    session = "\n".join(re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
    assert len(doctest.DocTestParser().get_examples(session)) >= 5
    (tmp_path / "session.txt").write_text(session, encoding="utf-8")
    command = [sys.executable, "-m", "doctest", "session.txt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_readme_shows_commands() -> None:
    """There is something to compare."""
    assert len(console_blocks()) >= 3
    assert named_answers()
