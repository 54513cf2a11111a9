"""The report: what would stop a run is a finding of it, and nothing is run that an unreadable list may deny."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from vllm_ir.diagnosis import report
from vllm_ir.diagnosis.children import targets
from vllm_ir.diagnosis.results import ProbeResult, Target

if TYPE_CHECKING:
    from pathlib import Path


def probed(told: report.Report) -> list[str]:
    """Return the providers that a probe would run."""
    return [each.provider for each in targets(told.found, told.policy)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no cache of whoever runs the tests take part."""
    monkeypatch.setenv("VLLM_IR_CACHE", str(tmp_path / "cache"))


def test_a_clean_process_has_no_finding_about_itself() -> None:
    """No file is in force, and the variable that is set is told."""
    told = report.examine()
    assert told.files == ()
    assert [each.name for each in told.variables if each.name.startswith("VLLM_IR_")] == ["VLLM_IR_CACHE"]
    assert told.describe()["probes"] is None
    assert "native" in probed(told)


def test_a_settings_file_is_told_with_what_is_wrong(tmp_path: Path) -> None:
    """Its sentence is that of a run; what it may deny is not run."""
    file = tmp_path / "vllm-ir.toml"
    file.write_text('deny = ["na tive"]\n', encoding="utf-8")
    told = report.examine()
    (settings,) = told.files
    assert (settings.role, settings.path) == ("settings", str(file))
    assert settings.problem is not None
    assert "'na tive'" in settings.problem
    assert probed(told) == ["native", "unfused"]
    file.write_text('[op-priority]\nrms_norm = ["native"]\n', encoding="utf-8")
    (settings,) = report.examine().files
    assert settings.problem is None


@pytest.mark.parametrize("name", ["vllm-ir.toml", "pyproject.toml"])
def test_a_settings_file_that_is_no_file_is_a_finding(tmp_path: Path, name: str) -> None:
    """A pipe is not waited for, and nothing is run that its policy may deny."""
    os.mkfifo(tmp_path / name)
    told = report.examine()
    assert [(each.role, each.path) for each in told.files] == [("settings", str(tmp_path / name))]
    assert len([each for each in told.findings if "it is no regular file but a pipe" in each]) == 1
    assert probed(told) == ["native", "unfused"]


def test_a_project_that_is_passed_over_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a file that is not in force, and as a finding; with a policy in it nothing is run that it may deny."""
    own, project = tmp_path / "vllm-ir.toml", tmp_path / "pyproject.toml"
    own.write_text("strict = false\n", encoding="utf-8")
    project.write_text('[tool.vllm-ir.op-priority]\nrms_norm = ["native"]\n', encoding="utf-8")
    told = report.examine()
    assert [(each.path, each.note) for each in told.files] == [
        (str(own), None),
        (str(project), f"It is passed over, because {own} goes before it."),
    ]
    assert len([each for each in told.findings if "[tool.vllm-ir] is passed over" in each]) == 1
    assert caplog.text == ""
    project.write_text('[tool.vllm-ir]\ndeny = ["cpu_c"]\n', encoding="utf-8")
    told = report.examine()
    assert [(each.path, bool(each.problem)) for each in told.files] == [(str(own), False), (str(project), True)]
    assert probed(told) == ["native", "unfused"]


@pytest.mark.parametrize("content", [None, "x = [", "deny = 3"])
def test_a_policy_that_cannot_be_read_is_a_finding(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that it may deny is run."""
    file = tmp_path / "policy.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("VLLM_IR_POLICY", str(file))
    told = report.examine()
    assert len([each for each in told.findings if str(file) in each]) == 1
    assert probed(told) == ["native", "unfused"]


@pytest.mark.parametrize("content", [None, "x = [", "version = 1"])
def test_a_lock_that_cannot_be_followed_is_a_finding(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same."""
    file = tmp_path / "x.lock"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("VLLM_IR_LOCK", str(file))
    told = report.examine()
    assert len([each for each in told.findings if str(file) in each]) == 1
    assert probed(told) == ["native", "unfused"]


def test_a_lock_that_is_not_this_machine_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `check` would say stands in the report; a lock that nobody enforces is told, and no finding."""
    from vllm_ir.cli.main import main

    assert main(["lock", "--allow-editable", "--platform", "rocm:gfx942"]) == 0
    (lock,) = report.examine().files
    assert (lock.named_by, lock.problem) == ("the working folder; VLLM_IR_LOCK would enforce it", None)
    monkeypatch.setenv("VLLM_IR_LOCK", str(tmp_path / "vllm-ir.lock"))
    (lock,) = report.examine().files
    assert lock.problem is not None
    assert "so no op runs" in lock.problem


def test_a_malformed_variable_is_a_finding_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is, all of them, and the rest of the report stands."""
    for name, value in (
        ("VLLM_IR_STRICT", "perhaps"),
        ("VLLM_IR_LOG", "LOUD"),
        ("VLLM_IR_OP_PRIORITY", "rms_norm"),
        ("VLLM_IR_PROVIDERS_DISABLED", "a b"),
    ):
        monkeypatch.setenv(name, value)
    told = report.examine()
    assert len([each for each in told.findings if each.startswith("VLLM_IR_")]) == 4
    assert probed(told) == ["native", "unfused"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [("rms_norm=absent", "provider 'absent' for op 'rms_norm' is not installed"), ("rms_nrom=native", "'rms_nrom'")],
)
def test_a_wish_in_vain_is_a_finding(value: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be read, and a run would stop with it; a probe asks nobody's wishes."""
    monkeypatch.setenv("VLLM_IR_OP_PRIORITY", value)
    told = report.examine()
    (problem,) = told.problems
    assert sentence in problem
    assert problem in told.findings
    assert "native" in probed(told)


def test_what_a_probe_found_is_among_the_findings() -> None:
    """A provider that runs is none."""
    told = report.examine()
    good = ProbeResult(Target("a", "dist-a", "1"), "runs", 1.0, "done")
    bad = ProbeResult(Target("b", "dist-b", "1"), "crashed", 1.0, "loading", "loading: It went.")
    with_both = told.with_probes([good, bad])
    assert set(with_both.findings) - set(told.findings) == {"provider b of dist-b: loading: It went."}
    assert [each["outcome"] for each in with_both.describe()["probes"]] == ["runs", "crashed"]


def test_a_probe_says_what_is_wrong_with_the_files_that_it_ran() -> None:
    """A signal alone names no cause; a provider that runs has none to explain."""
    damage = {"dist-b": ("distribution dist-b, file k.so: not as installed: wanted 5 bytes, found 1 bytes.", "more")}
    told = replace(report.examine(), damage=damage)
    results = [
        ProbeResult(Target("b", "dist_b", "1"), outcome, 1.0, "loading", reason)
        for outcome, reason in (("crashed", "loading: its process was ended by SIGBUS."), ("runs", None))
    ]
    crashed, runs = told.with_probes(results).probes or ()
    assert crashed.reason == (
        "loading: its process was ended by SIGBUS. Its files are not what was installed;"
        " distribution dist-b, file k.so: not as installed: wanted 5 bytes, found 1 bytes."
    )
    assert runs.reason is None
