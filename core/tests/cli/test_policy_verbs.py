"""A policy file as an operator meets it: verbs tell what it leaves out, and one that cannot be read stops them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from core.tests.cli.conftest import Site

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="a live answer needs torch, which is not here")
BOMB = "raise SystemExit('a denied provider was imported')\n"


@pytest.fixture
def policy(site: Site) -> Path:
    """Give a policy in a file of its own, with one provider that it denies and one that it lets run."""
    site.add_provider("good", default=True)
    site.add_provider("denied", default=True, hooks=BOMB)
    file = site.folder / "policy.toml"
    file.write_text('deny = ["denied"]\n', encoding="utf-8")
    return file


def test_every_verb_that_reads_files_tells_the_same_reason(site: Site, policy: Path) -> None:
    """The record, the provider's page and the row of the forecast."""
    said = f"Provider 'denied' of dist-denied is denied: deny = [\"denied\"] in {policy} denies it."
    verbs = (["list", "--all"], ["show", "denied"], ["explain", "rms_norm", "--static"])
    listed, shown, explained = site.run_each([[*verb, "--json"] for verb in verbs], VLLM_IR_POLICY=str(policy))
    (record,) = [each for each in json.loads(listed.stdout)["providers"] if each["name"] == "denied"]
    assert record["failure"] == {"kind": "denied by policy", "reason": said, "fault": False, "traceback": None}
    (provider,) = json.loads(shown.stdout)["providers"]
    assert provider["failure"]["reason"] == said
    (row,) = [each for each in json.loads(explained.stdout)["candidates"] if each["provider"] == "denied"]
    assert (row["accepted"], row["reason"]) == (False, said)
    assert [done.returncode for done in (listed, shown, explained)] == [0, 0, 0]
    assert [json.loads(done.stdout)["policy"] for done in (listed, explained)] == [[str(policy)]] * 2


def test_a_person_sees_which_file_is_in_force(site: Site, policy: Path) -> None:
    """Above the table, and only where a file says who may run."""
    verbs = (["list"], ["explain", "rms_norm", "--static"])
    for done in site.run_each(verbs, VLLM_IR_POLICY=str(policy), COLUMNS="1000"):
        assert done.stdout.splitlines()[1] == f"under the policy of {policy}"
    (site.folder / "vllm-ir.toml").write_text('op-priority.rms_norm = "good"', encoding="utf-8")
    for done in site.run_each(verbs):
        assert "policy" not in done.stdout


@needs_torch
def test_a_live_answer_and_loading_import_nothing_of_it(site: Site, policy: Path) -> None:
    """A denied distribution would end the process if it were imported."""
    variables = {"VLLM_IR_POLICY": str(policy), "VLLM_IR_PROVIDERS": "good,denied"}
    live, loaded = site.run_each([["explain", "rms_norm", "--json"], ["list", "--load", "--json"]], **variables)
    assert json.loads(live.stdout)["selected"] == "good"
    assert f"in {policy} denies it" in live.stdout
    assert {each["name"]: each["state"] for each in json.loads(loaded.stdout)["providers"]}["good"] == "loaded"


@pytest.mark.parametrize("static", [["--static"], pytest.param([], marks=needs_torch)])
def test_a_flag_that_names_a_denied_provider_is_an_error_that_names_the_file(
    site: Site, policy: Path, static: list[str]
) -> None:
    """A flag tightens and never widens."""
    flag = "--ir-op-priority.rms_norm=denied"
    done = site.run("explain", "rms_norm", *static, flag, VLLM_IR_POLICY=str(policy))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--ir-op-priority: provider 'denied' cannot run op 'rms_norm' here: " in done.stderr
    assert f'deny = ["denied"] in {policy} denies it' in done.stderr


def test_one_op_is_denied_in_the_settings_of_the_folder(site: Site) -> None:
    """The same keys beside the order, in either file."""
    site.add_provider("good", default=True)
    site.add_provider("spare", default=True)
    for name, head in (("vllm-ir.toml", ""), ("pyproject.toml", "[tool.vllm-ir]\n")):
        (site.folder / name).write_text(f'{head}deny = ["good:rms_norm", "cpu_c"]\n', encoding="utf-8")
        done = site.run("explain", "rms_norm", "--static", "--json")
        assert json.loads(done.stdout)["selected"] == "spare", done.stderr
        (row,) = [each for each in json.loads(done.stdout)["candidates"] if each["provider"] == "good"]
        assert row["reason"].startswith("Provider 'good' of dist-good is denied")
        (site.folder / name).unlink()


def test_what_looks_like_a_mistake_in_a_policy_is_said(site: Site, policy: Path) -> None:
    """A rule that denies nothing because it is misspelt, as a note of the list and beside an answer."""
    policy.write_text('deny = ["god:rms_norm", "good:rms_nrom"]', encoding="utf-8")
    listed, explained = site.run_each([["list"], ["explain", "rms_norm", "--static"]], VLLM_IR_POLICY=str(policy))
    for text in (listed.stdout, explained.stderr):
        words = " ".join(text.split())
        assert f"deny in {policy} names 'god', which nothing here has. Did you mean 'good'?" in words
        assert "'good:rms_nrom', and no installed provider has an op 'rms_nrom'. Did you mean 'rms_norm'?" in words


def test_a_settings_file_that_is_no_file_stops_every_verb(site: Site) -> None:
    """A folder in its place, as a container's bind mount makes one, lifts no policy."""
    (site.folder / "vllm-ir.toml").mkdir()
    for done in site.run_each([["list"], ["explain", "rms_norm", "--static"]]):
        assert (done.returncode, done.stdout) == (2, "")
        assert "vllm-ir.toml: it is no regular file but a folder" in done.stderr


def test_a_project_that_is_passed_over_is_named(site: Site) -> None:
    """Once, beside the answer, and for programs."""
    (site.folder / "vllm-ir.toml").write_text("", encoding="utf-8")
    (site.folder / "pyproject.toml").write_text('[tool.vllm-ir]\nop-priority.rms_norm = "native"\n', encoding="utf-8")
    said = "pyproject.toml: [tool.vllm-ir] is passed over, because vllm-ir.toml goes before it."
    shown, listed = site.run_each([["list"], ["list", "--json"]])
    assert (shown.stdout + shown.stderr).count(said) == 1
    assert [said in doubt for doubt in json.loads(listed.stdout)["doubts"]] == [True]


def test_an_allowed_op_that_nothing_has_stops_every_verb(site: Site) -> None:
    """Nothing but native would run for a slip of the pen."""
    site.add_provider("good")
    for done in site.run_each([["list"], ["explain", "rms_norm", "--static"]], VLLM_IR_PROVIDERS="good:rms_nrm"):
        assert (done.returncode, done.stdout) == (2, "")
        assert "VLLM_IR_PROVIDERS names 'good:rms_nrm', and no installed provider has an op 'rms_nrm'" in done.stderr
        assert "Did you mean 'rms_norm'?" in done.stderr


def test_a_policy_that_cannot_be_followed_stops_every_verb(site: Site, policy: Path) -> None:
    """Nobody is told what a policy would say that nobody could read."""
    verbs = [["list"], ["show", "good"], ["explain", "rms_norm", "--static"]]
    for text, said in (("deny = 3", "deny is 3, wanted a list"), ("denied = []", "Did you mean 'deny'?")):
        policy.write_text(text, encoding="utf-8")
        for done in site.run_each(verbs, VLLM_IR_POLICY=str(policy)):
            assert (done.returncode, done.stdout) == (2, "")
            assert f"vllm-ir: {policy}: " in done.stderr
            assert said in done.stderr
    missing = site.run("list", VLLM_IR_POLICY="nowhere.toml")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert (
        missing.stderr
        == "vllm-ir: nowhere.toml: it cannot be read: No such file or directory. Mend the file, or its path.\n"
    )


PROGRAM = """
import sys, torch, vllm_ir
for number in range(2):
    try:
        vllm_ir.ops.rms_norm(torch.ones(2, 4), None, 1e-6)
    except vllm_ir.errors.ConfigurationError as error:
        print(error)
print([name for name in sys.modules if name.startswith("pack_")])
"""


@needs_torch
def test_a_program_runs_nothing_under_a_policy_that_cannot_be_read(site: Site, policy: Path) -> None:
    """Every call raises, and no provider was imported before."""
    policy.write_text("deny = [", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(site.folder), "VLLM_IR_POLICY": str(policy)},
        cwd=site.folder, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    first, second, imported = done.stdout.splitlines()
    assert first == second
    assert first.startswith(f"{policy}: it cannot be read: ")
    assert imported == "[]"


def test_a_policy_without_a_name_stops_every_verb(site: Site) -> None:
    """What a template leaves whose own variable is unset."""
    for done in site.run_each([["list"], ["explain", "rms_norm", "--static"]], VLLM_IR_POLICY=""):
        assert (done.returncode, done.stdout) == (2, "")
        assert "vllm-ir: VLLM_IR_POLICY='' cannot be read, wanted the path of a file" in done.stderr
