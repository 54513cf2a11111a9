"""The entrance: verbs, exit codes, and leaving quietly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir.cli import commands
from vllm_ir.cli import main as entrance
from vllm_ir.cli.main import VERBS, main
from vllm_ir.errors import ProviderError, UnknownOp

if TYPE_CHECKING:
    from pathlib import Path

    from core.tests.cli.conftest import Site


def test_no_verb_is_a_usage_error_and_help_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Both show what there is to do; only asking for it is success."""
    assert main([]) == 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.count("usage: vllm-ir VERB") == 2
    assert all(f"  {verb} " in out for verb in VERBS)


def test_an_unknown_verb_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the finger costs one line."""
    assert main(["lst"]) == 2
    assert "Did you mean 'list'?" in capsys.readouterr().err


def test_a_verb_of_a_distribution_that_is_not_installed_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Someone who follows a README is told what to install."""
    monkeypatch.setattr(commands, "scan", tuple)
    assert main(["bench"]) == 2
    assert "pip install vllm-ir-testkit" in capsys.readouterr().err


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints name and version."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("vllm-ir 0.1.0")


def test_an_unknown_variable_is_complained_of_once(site: Site) -> None:
    """A misspelt variable does not pass in silence."""
    done = site.run("list", VLLM_IR_PROVIDER="x")
    assert done.stderr.count("VLLM_IR_PROVIDER means nothing") == 1
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (UnknownOp(op="a", known=["b"]), 2),
        (ProviderError("a distribution did not load"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_escapes_a_verb_becomes_a_sentence_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    """A user's mistake is 2, any other error of ours 1, an interrupt what a shell expects."""

    def fail(_: list[str]) -> int:
        raise raised

    monkeypatch.setattr(entrance, "_run", fail)
    assert main(["list"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vllm-ir: ")


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault inside a verb is not dressed up as a user's mistake."""

    def fail(_: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(entrance, "_run", fail)
    with pytest.raises(ZeroDivisionError):
        main(["list"])


SAID = "import sys\ndef main(arguments):\n    print('x' * int(arguments[0]))\n    return 0\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("list > /dev/full", "The answer is lost: stdout cannot be written (No space left on device). Send it "),
        ("say 100000 > /dev/full", "The answer is lost: stdout cannot be written (No space left on device). Send it "),
        ("doctor >&-", "The answer is lost: stdout cannot be written (it is closed). Send it "),
        ("doctor --json 2>&-", ""),
        ("doctor", "The working folder of this process cannot be found (No such file or directory), and "),
        ("list --json", "The working folder of this process cannot be found (No such file or directory), and "),
    ],
)
def test_where_nothing_can_be_said_it_is_said_why(site: Site, tmp_path: Path, line: str, sentence: str) -> None:
    """A full disk, a closed stdout or a folder that has gone is one sentence and exit 2, and no traceback."""
    site.add_verb("say", "dist-say", SAID)
    gone = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && " if "folder" in sentence else ""
    command = f"{gone}PYTHONPATH={site.folder} {sys.executable} -m vllm_ir {line}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    if not sentence:
        assert done.stdout.startswith("{")
        return
    assert done.returncode == 2
    assert done.stderr.startswith(f"vllm-ir: {sentence}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_text_can_be_said(site: Site, encoding: str) -> None:
    """Bytes in a variable that are no text, where the locale knows ASCII alone too: shown, and JSON stays JSON."""
    for arguments in (["doctor"], ["doctor", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "vllm_ir", *arguments], cwd=site.folder, capture_output=True, check=False,
            env={
                **{name.encode(): value.encode() for name, value in os.environ.items()},
                b"PYTHONIOENCODING": encoding.encode(), b"VLLM_IR_LOCK": "/absent/\u00e9".encode() + b"\xff\xfe",
            },
        )  # fmt: skip
        assert b"Traceback" not in done.stderr
        assert done.returncode == 1
        assert b"/absent/" in done.stdout
    (lock,) = json.loads(done.stdout.decode(encoding))["files"]
    assert lock["path"] == "/absent/\u00e9\udcff\udcfe"


def test_a_reader_that_leaves_ends_it_quietly(site: Site) -> None:
    """`vllm-ir VERB | head -1` prints one line and no complaint."""
    site.add_verb("flood", "dist-flood", "def main(arguments):\n    while True:\n        print('drop')\n")
    line = f"PYTHONPATH={site.folder} {sys.executable} -m vllm_ir flood | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("drop\n", "", 141)
