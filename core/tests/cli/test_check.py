"""`vllm-ir check`: each difference a line, the exit code for a script, and the same as values."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from vllm_ir.plugins.distributions import scan

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site

ELSEWHERE = ",".join(each.name for each in scan() if each.name != "vllm-ir" and each.providers)


def test_the_machine_that_was_locked_is_clean(locked: Site) -> None:
    """Closely and at a glance, for this machine and for its platform by name."""
    for options in ([], ["--fast"], ["--strict"], ["--platform", "cpu"]):
        done = locked.run_alone("check", *options)
        assert (done.returncode, done.stdout) == (0, "vllm-ir.lock: everything is as locked on cpu.\n"), done.stderr


@pytest.mark.parametrize("options", [[], ["--fast"]])
def test_one_changed_byte_is_a_line_that_names_the_file(locked: Site, options: list[str]) -> None:
    """With exit code 1, what was locked, what is here and the command that mends it."""
    file = locked.folder / "pack_fast" / "hooks.py"
    content = bytearray(file.read_bytes())
    content[10] ^= 1
    file.write_bytes(content)
    done = locked.run_alone("check", *options)
    assert done.returncode == 1
    line, last = done.stdout.splitlines()
    assert line.startswith("distribution dist-fast, file pack_fast/hooks.py: locked sha256:")
    assert line.endswith("Reinstall it: pip install --force-reinstall --no-deps dist-fast==1.0.")
    assert last == "vllm-ir.lock: 1 difference on cpu."


def test_differences_are_values_for_programs(locked: Site) -> None:
    """With what fails apart from what is told."""
    lock = locked.folder / "vllm-ir.lock"
    text = lock.read_text(encoding="utf-8")
    lock.write_text(text.replace("python = ", "torch = '9.9'\npython = ") if "torch = " not in text else text)
    locked.add_provider("more")
    told = json.loads(locked.run_alone("check", "--json").stdout)
    assert (told["version"], told["file"], told["platforms"], told["clean"]) == ("1", "vllm-ir.lock", ["cpu"], False)
    (each,) = told["differences"]
    assert (each["what"], each["locked"], each["found"]) == ("distribution dist-more", "nothing", "1.0")
    assert (each["pinned"], each["fails"]) == (True, True)
    assert each["mend"].startswith("Uninstall it: pip uninstall dist-more;")


def test_what_is_recorded_is_a_note_unless_strict(locked: Site) -> None:
    """Another patch level of Python is no reason to stop."""
    lock = locked.folder / "vllm-ir.lock"
    text = lock.read_text(encoding="utf-8")
    old = next(line for line in text.splitlines() if line.startswith("python = "))
    lock.write_text(text.replace(old, 'python = "3.9.1"'), encoding="utf-8")
    done = locked.run_alone("check")
    assert done.returncode == 0
    assert done.stdout.startswith("note: python: locked 3.9.1, found 3.")
    assert done.stdout.endswith("vllm-ir.lock: everything is as locked on cpu, 1 note.\n")
    strict = locked.run_alone("check", "--strict")
    assert (strict.returncode, strict.stdout.startswith("python: locked 3.9.1, found 3.")) == (1, True)


def test_which_lock_is_meant(locked: Site) -> None:
    """A named one, else that of the variable, else that of the working folder, else there is nothing to check."""
    lock = locked.folder / "vllm-ir.lock"
    lock.rename(locked.folder / "other.lock")
    none = locked.run_alone("check")
    assert (none.returncode, "there is no vllm-ir.lock here to check; `vllm-ir lock` writes one" in none.stderr) == (
        3,
        True,
    )
    assert locked.run_alone("check", "--lock", "other.lock").returncode == 0
    by_variable = locked.run_alone("check", VLLM_IR_LOCK="other.lock")
    assert by_variable.stdout.startswith("other.lock: everything")
    gone = locked.run_alone("check", "--lock", "gone.lock")
    assert (gone.returncode, "gone.lock cannot be read: no such file or directory" in gone.stderr) == (2, True)


def test_a_run_that_would_stop_is_a_difference(locked: Site) -> None:
    """The machine that was locked ran."""
    done = locked.run_alone("check", VLLM_IR_OP_PRIORITY="rms_norm=gone")
    assert done.returncode == 1
    assert "a run: locked one that starts, found one that stops: VLLM_IR_OP_PRIORITY: provider 'gone'" in done.stdout


def test_other_verbs_show_what_the_lock_leaves_out(locked: Site) -> None:
    """As the process does; a lock that cannot be read hides nothing."""
    locked.add_provider("more", default=True)
    told = json.loads(locked.run_alone("list", "--all", "--json", VLLM_IR_LOCK="vllm-ir.lock").stdout)
    (more,) = [each for each in told["providers"] if each["name"] == "more"]
    assert (more["failure"]["kind"], more["failure"]["fault"]) == ("not in the lock", False)
    broken = locked.run_alone("list", "--json", VLLM_IR_LOCK="gone.lock")
    assert (broken.returncode, "a run would stop here. gone.lock cannot be read" in broken.stderr) == (2, True)
    assert json.loads(broken.stdout)["error"].startswith("gone.lock cannot be read: ")
    assert any(each["name"] == "more" for each in json.loads(broken.stdout)["providers"])


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")
def test_verbs_that_load_say_why_nothing_runs(locked: Site) -> None:
    """It is the operator's lock that stops them, and no fault of ours."""
    (locked.folder / "pack_fast" / "hooks.py").write_text("x", encoding="utf-8")
    variables = {"VLLM_IR_LOCK": "vllm-ir.lock", "VLLM_IR_PROVIDERS_DISABLED": ELSEWHERE}
    listed, explained = locked.run_each([["list", "--load"], ["explain", "rms_norm"]], **variables)
    assert (listed.returncode, explained.returncode) == (2, 2)
    for said in (listed.stderr, explained.stderr):
        assert "This process is not what VLLM_IR_LOCK=vllm-ir.lock locks, so no op runs: 1 difference." in said
        assert "fault in vllm-ir" not in said
