"""What `list`, `show` and `explain` say where the lock in force would stop a run: the lock's sentence, and exit 2."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from vllm_ir.plugins.distributions import scan

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site

ELSEWHERE = ",".join(each.name for each in scan() if each.name != "vllm-ir" and each.providers)
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="a live answer needs torch, which is not here")

VERBS = [["list"], ["show", "fast"], ["explain", "rms_norm", "--static"]]
STOPS = "This process is not what VLLM_IR_LOCK=bad.lock locks, so no op runs: 1 difference."


@pytest.fixture
def bad(locked: Site) -> dict[str, str]:
    """Give variables that name a lock in which one digest is another."""
    text = (locked.folder / "vllm-ir.lock").read_text(encoding="utf-8")
    head, name, rest = text.partition("dist-fast")
    other = re.sub(r'digest = "sha256:.{8}', 'digest = "sha256:00000000', rest, count=1)
    assert other != rest
    (locked.folder / "bad.lock").write_text(head + name + other, encoding="utf-8")
    return {"VLLM_IR_LOCK": "bad.lock", "VLLM_IR_PROVIDERS_DISABLED": ELSEWHERE}


def test_every_verb_that_reads_files_tells_that_a_run_would_stop(locked: Site, bad: dict[str, str]) -> None:
    """The answer is still shown, as what it would be but for the lock."""
    listed, shown, explained = locked.run_each(VERBS, **bad)
    for done in (listed, shown, explained):
        assert done.returncode == 2
        assert f"vllm-ir: a run would stop here. {STOPS}" in done.stderr
        assert "dist-fast" in done.stderr
    assert "A run would stop here. But for that, 3 providers may run here" in " ".join(listed.stdout.split())
    assert "would run, as far as files tell" in " ".join(explained.stdout.split())
    for done in locked.run_each([[*verb, "--json"] for verb in (VERBS[0], VERBS[2])], **bad):
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"].startswith(STOPS)


def test_a_lock_that_holds_or_is_not_there(locked: Site) -> None:
    """One that is kept says nothing; one that is gone stops a run as a wrong one does."""
    variables = {"VLLM_IR_PROVIDERS_DISABLED": ELSEWHERE}
    for done in locked.run_each(VERBS, VLLM_IR_LOCK="vllm-ir.lock", **variables):
        assert (done.returncode, done.stderr) == (0, "")
    for done in locked.run_each(VERBS, VLLM_IR_LOCK="gone.lock", **variables):
        assert done.returncode == 2
        assert done.stderr.count("gone.lock cannot be read") == 1


def test_a_flag_that_changes_what_is_locked(locked: Site) -> None:
    """The order that was typed is held against the lock, as a run holds it."""
    variables = {"VLLM_IR_LOCK": "vllm-ir.lock", "VLLM_IR_PROVIDERS_DISABLED": ELSEWHERE}
    done = locked.run("explain", "rms_norm", "--static", "--ir-op-priority.rms_norm=native", **variables)
    assert done.returncode == 2
    assert "a run would stop here. This process is not what VLLM_IR_LOCK=vllm-ir.lock locks" in done.stderr
    assert "op rms_norm" in done.stderr


def test_a_machine_elsewhere_is_held_to_what_the_lock_says_of_it(locked: Site) -> None:
    """A lock without the platform that is asked about would stop a run there."""
    variables = {"VLLM_IR_LOCK": "vllm-ir.lock", "VLLM_IR_PROVIDERS_DISABLED": ELSEWHERE}
    done = locked.run("list", "--platform", "cuda:9.0", **variables)
    assert done.returncode == 2
    assert "platform cuda" in done.stderr


@needs_torch
def test_a_live_answer_stops_with_the_same_code(locked: Site, bad: dict[str, str]) -> None:
    """There is nothing to show: no provider was loaded."""
    done = locked.run("explain", "rms_norm", **bad)
    assert (done.returncode, done.stdout) == (2, "")
    assert STOPS in done.stderr
