"""Loading in a child process: what breaks, prints or crashes there does not reach this one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir.plugins import probe

if TYPE_CHECKING:
    from core.tests.plugins.conftest import Site


@pytest.fixture(autouse=True)
def child_path(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the child find the test's folder where this process finds it."""
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site.path), inherited])))


def of(found: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the record of one provider."""
    (record,) = [each for one in found["distributions"] for each in one["providers"] if each["name"] == name]
    assert isinstance(record, dict)
    return record


def test_one_broken_among_others(site: Site) -> None:
    """The good one is loaded in the child, the broken one has its traceback, and nothing is imported here."""
    site.provider(
        files={"noise.py": "print('not JSON')"},
        hooks=(
            "import os\nprint('noise on stdout')\nos.system('echo more noise')\nfrom vllm_ir import hookimpl\n"
            "@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels, noise\n    return [kernels.rms_norm]\n"
        ),
    )
    site.provider("synthetic-broken", package="synthetic_broken", provider="broken", hooks="1 / 0\n")
    found = probe.load_in_child()
    assert of(found, "fake")["state"] == "loaded"
    assert of(found, "native")["state"] == "loaded"
    broken = of(found, "broken")
    assert broken["failure"]["kind"] == "broken import"
    assert "ZeroDivisionError" in broken["failure"]["traceback"]
    assert "refused: broken (broken import)" in found["summary"]
    assert (found["platform"]["device_type"], len(found["digest"]), found["dropped"]) == ("cpu", 64, [])
    assert site.imported() == []


def test_a_crash_is_laid_at_the_right_door(site: Site) -> None:
    """A segmentation fault takes the child along; children of their own tell which distribution it was."""
    site.provider(hooks="import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    site.provider("synthetic-good", package="synthetic_good", provider="good")
    found = probe.load_in_child()
    crashed = of(found, "fake")
    assert crashed["failure"]["kind"] == "broken import"
    assert crashed["failure"]["fault"]
    assert "was ended by SIGSEGV" in crashed["failure"]["reason"]
    assert of(found, "good")["state"] == "loaded"


def test_an_exit_without_an_answer_is_told(site: Site) -> None:
    """A provider that ends its process is a broken one."""
    site.provider(hooks="import os\nos._exit(0)\n")
    assert "ended by exit code 0 before it could report" in of(probe.load_in_child(), "fake")["failure"]["reason"]


def test_a_child_that_hangs_is_ended(site: Site) -> None:
    """The deadline is the caller's."""
    site.provider(hooks="import time\ntime.sleep(600)\n")
    found = probe._child({}, 8)
    assert found == (None, "ended by us after 8 seconds")


def test_what_the_operator_has_to_settle_comes_back_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the class, so that the command line knows its exit code."""
    monkeypatch.setenv("VLLM_IR_PROVIDERS", "absent")
    found = probe.load_in_child()
    assert found["error_class"] == "UnknownAllowed"
    assert "VLLM_IR_PROVIDERS names 'absent'" in found["error"]


def test_what_two_distributions_claim_fails_in_both_and_the_rest_is_loaded(site: Site) -> None:
    """The child is there to tell, not to run."""
    site.provider("synthetic-a", package="synthetic_a")
    site.provider("synthetic-b", package="synthetic_b")
    site.provider("synthetic-good", package="synthetic_good", provider="good")
    found = probe.load_in_child()
    kinds = [
        each["failure"]["kind"] for one in found["distributions"] for each in one["providers"] if each["name"] == "fake"
    ]
    assert kinds == ["duplicate provider"] * 2
    assert of(found, "good")["state"] == "loaded"


@pytest.mark.parametrize(("code", "words"), [(-11, "ended by SIGSEGV"), (-250, "ended by signal 250")])
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    """Signals by their names, where they have one."""
    assert probe._how_it_ended(code) == words
