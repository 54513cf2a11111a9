"""`vllm-ir lock`: written whole or not at all, from files alone, the same each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import vllm_ir
from vllm_ir.cli import facts, locking
from vllm_ir.cli.main import main
from vllm_ir.lock.files import Depth
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.manifest_file import read_manifest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    import pytest

    from core.tests.cli.conftest import Site

OWN = Path(vllm_ir.__file__).with_name("vllm_ir_provider.toml")
ELSEWHERE = ",".join(each.name for each in scan() if each.name != "vllm-ir" and each.providers)
VERBS = [
    ["lock"],
    ["lock", "--platform", "cuda:9.0", "--platform", "rocm:gfx942", "--platform", "cpu", "--lock", "three.lock"],
    ["check"],
    ["check", "--fast", "--json"],
    ["check", "--lock", "three.lock", "--platform", "cuda:9.0"],
    ["export", "requirements"],
]
IMPORTED = """
import json, sys
from vllm_ir.cli.main import main
codes = [main(line) for line in json.loads(sys.argv[1])]
print(json.dumps([codes, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


def test_it_says_what_is_locked(locked: Site) -> None:
    """In the working folder, in TOML, and again the same bytes."""
    before = (locked.folder / "vllm-ir.lock").read_bytes()
    again = locked.run_alone("lock")
    orders = 2 * len(read_manifest(OWN.read_bytes(), str(OWN), reserved=()).adds_ops)
    assert again.stdout == f"vllm-ir.lock: 2 distributions, {orders} orders on cpu, unchanged.\n"
    assert (locked.folder / "vllm-ir.lock").read_bytes() == before
    told = tomllib.loads(before.decode())
    assert told["platforms"]["cpu"]["eager"]["rms_norm"] == [
        {"provider": "fast", "layer": "provider default"},
        {"provider": "native", "layer": "built-in"},
    ]
    assert set(told["distributions"]["dist-fast"]) == {"version", "manifest", "digest", "providers"}


def test_no_verb_about_locks_imports_torch_or_a_provider(locked: Site) -> None:
    """Nor anything that draws or calls hooks: what is imported is told by the process itself."""
    (locked.folder / "pack_fast" / "__init__.py").write_text("raise SystemExit('imported')\n", encoding="utf-8")
    metadata = locked.folder / "dist_fast-1.0.dist-info"
    locked.record(metadata, [f"pack_fast/{name}" for name in ("__init__.py", "hooks.py", "vllm_ir_provider.toml")])
    elsewhere = ",".join(each.name for each in scan() if each.name != "vllm-ir" and each.providers)
    environment = {**os.environ, "PYTHONPATH": str(locked.folder), "VLLM_IR_PROVIDERS_DISABLED": elsewhere}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, json.dumps(VERBS)],
        env=environment, cwd=locked.folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    codes, modules = json.loads(done.stderr.splitlines()[-1])
    assert codes == [0] * len(VERBS), (done.stdout, done.stderr)
    assert {"vllm_ir", "tomli_w"} <= set(modules)
    assert {"torch", "pluggy", "rich", "pack_fast"} & set(modules) == set()


def test_sections_for_machines_that_are_not_here(locked: Site) -> None:
    """One each, and as JSON for programs."""
    names = ["cuda:9.0", "rocm:gfx942", "cpu"]
    options = [word for name in names for word in ("--platform", name)]
    told = json.loads(locked.run_alone("lock", "--json", *options).stdout)
    assert (told["version"], told["file"], told["changed"]) == ("1", "vllm-ir.lock", True)
    assert sorted(told["platforms"]) == sorted(names)
    assert told["platforms"]["cuda:9.0"]["architectures"] == ["9.0"]
    assert told["platforms"]["cuda:9.0"]["eager"]["rms_norm"] == [{"provider": "native", "layer": "built-in"}]
    assert told["distributions"]["dist-fast"]["providers"] == ["fast"]
    file = tomllib.loads((locked.folder / "vllm-ir.lock").read_text(encoding="utf-8"))
    assert sorted(file["platforms"]) == sorted(names)
    assert locked.run_alone("lock", "--platform", "cuda").returncode == 2


def test_what_has_no_digest_is_refused(locked: Site) -> None:
    """Unless it is asked for; the lock says so."""
    (locked.folder / "dist_fast-1.0.dist-info" / "RECORD").unlink()
    before = (locked.folder / "vllm-ir.lock").read_bytes()
    done = locked.run_alone("lock")
    assert done.returncode == 2
    assert "No digest can be taken of dist-fast: its installer left no RECORD. No installer removes" in done.stderr
    assert (locked.folder / "vllm-ir.lock").read_bytes() == before
    assert locked.run_alone("lock", "--allow-editable").returncode == 0
    told = tomllib.loads((locked.folder / "vllm-ir.lock").read_text(encoding="utf-8"))
    assert told["distributions"]["dist-fast"]["editable"] is True


def test_what_was_altered_is_refused(locked: Site) -> None:
    """A lock of altered files would make the alteration right."""
    before = (locked.folder / "vllm-ir.lock").read_bytes()
    (locked.folder / "pack_fast" / "hooks.py").write_text("x", encoding="utf-8")
    done = locked.run_alone("lock")
    assert done.returncode == 1
    assert done.stdout.startswith("distribution dist-fast, file pack_fast/hooks.py: locked ")
    assert "vllm-ir.lock was not written: what is installed is not what its wheels brought." in done.stderr
    assert (locked.folder / "vllm-ir.lock").read_bytes() == before
    programs = locked.run_alone("lock", "--json")
    assert (programs.returncode, programs.stdout, done.stdout in programs.stderr) == (1, "", True)


def test_what_a_run_would_stop_with_is_refused(locked: Site) -> None:
    """A lock of a run that never starts holds nothing."""
    done = locked.run_alone("lock", VLLM_IR_OP_PRIORITY="rms_norm=gone")
    assert done.returncode == 2
    assert "provider 'gone' for op 'rms_norm' is not installed" in done.stderr


def test_a_bar_shows_how_far_reading_has_come(
    locked: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal, where there is much to read; nowhere else, and it leaves stdout alone."""
    monkeypatch.syspath_prepend(str(locked.folder))
    monkeypatch.chdir(locked.folder)
    facts.preferences.cache_clear()
    locking.inspect(None, Depth.BYTES)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(locking, "LONG", 100)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    locking.inspect(None, Depth.BYTES)
    out, err = capsys.readouterr()
    assert (out, "reading files" in err) == ("", True)
    locking.inspect(None, Depth.GLANCE)
    assert capsys.readouterr() == ("", "")
    facts.preferences.cache_clear()


def test_sections_that_are_dropped_are_named_with_what_keeps_them(locked: Site) -> None:
    """A lock for a fleet that one machine writes anew would hold the others no more."""
    before, kept, again, told = locked.run_each(
        [
            ["lock", "--lock", "a b.lock", "--platform", "cpu", "--platform", "cuda:9.0"],
            ["lock", "--lock", "a b.lock", "--platform", "cuda:9.0", "--platform", "cpu"],
            ["lock", "--lock", "a b.lock"],
            ["lock", "--lock", "vllm-ir.lock", "--platform", "xpu", "--json"],
        ],
        VLLM_IR_PROVIDERS_DISABLED=ELSEWHERE,
    )
    assert [each.returncode for each in (before, kept, again, told)] == [0] * 4, told.stderr
    assert "has lost" not in before.stderr + kept.stderr
    assert (
        "vllm-ir: a b.lock has lost the section for cuda:9.0, which this command did not name. To have all of them:"
        " vllm-ir lock --lock 'a b.lock' --platform cpu --platform cuda:9.0.\n"
    ) in again.stderr
    assert json.loads(told.stdout)["dropped"] == ["cpu"]


def test_a_lock_without_a_name_is_a_mistake(locked: Site) -> None:
    """A variable of a script that is unset must not mean the lock of the working folder."""
    for done in locked.run_each(
        [["lock", "--lock", ""], ["check", "--lock", ""], ["export", "requirements", "--lock", " "]]
    ):
        assert done.returncode == 2
        assert "argument --lock: '" in done.stderr
        assert "names no file; leave --lock out where the default is meant" in done.stderr


def test_the_wheels_of_what_has_no_digest_are_one_command(locked: Site) -> None:
    """Editable installations as one, and one without RECORD by the folders that pip cannot remove."""
    locked.add_provider("more")
    locked.add_provider("other")
    for name in ("fast", "more"):
        folder = locked.folder / f"dist_{name}-1.0.dist-info"
        (folder / "direct_url.json").write_text('{"dir_info": {"editable": true}}', encoding="utf-8")
    (locked.folder / "dist_other-1.0.dist-info" / "RECORD").unlink()
    done = locked.run_alone("lock")
    assert done.returncode == 2
    assert (
        "the wheel: pip install --force-reinstall --no-deps dist-fast==1.0 dist-more==1.0. No installer" in done.stderr
    )
    folders = f"'{locked.folder}/pack_other' '{locked.folder}/dist_other-1.0.dist-info'"
    assert f": rm -r {folders} && pip install --no-deps dist-other==1.0. Or lock without" in done.stderr


def test_a_working_folder_that_is_gone_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a sentence, whichever verb about locks looks for settings or a lock there."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    facts.preferences.cache_clear()
    try:
        codes = [
            main(line) for line in (["lock"], ["check"], ["check", "--lock", "a.lock"], ["export", "requirements"])
        ]
    finally:
        facts.preferences.cache_clear()
    said = capsys.readouterr().err
    assert codes == [2] * 4, said
    assert said.count("vllm-ir: The working folder of this process cannot be found") == 4
