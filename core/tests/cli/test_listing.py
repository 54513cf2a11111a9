"""`vllm-ir list`: five providers of which two can run, told from files, and told by loading them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir.cli import listing
from vllm_ir.cli.listing import Inventory, describe_platform
from vllm_ir.cli.main import main

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="loading needs torch, which is not here")
FIVE = {"good", "spare", "broken", "unsupported", "denied"}
DENY = {"VLLM_IR_PROVIDERS_DISABLED": "denied"}
BOMB = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"


@pytest.fixture
def five(site: Site) -> Site:
    """Give five providers: two good ones, a broken one, one for another platform and one that is denied."""
    site.add_provider("good")
    site.add_provider("spare", default=True)
    site.add_provider("broken", hooks="import library_that_is_not_there\n")
    site.add_provider("unsupported", platform="faraway", hooks=BOMB)
    site.add_provider("denied", hooks=BOMB)
    return site


def states(text: str) -> dict[str, str]:
    """Return the five providers of a JSON answer: their state, or the kind of their failure."""
    return {
        each["name"]: each["failure"]["kind"] if each["failure"] else each["state"]
        for each in json.loads(text)["providers"]
        if each["name"] in FIVE
    }


def imported(site: Site) -> list[str]:
    """Return the packages whose hooks were imported although they must not be."""
    return [path.parent.name for path in site.folder.rglob("imported")]


def test_files_tell_who_cannot_run_and_nothing_is_imported(five: Site) -> None:
    """Without `--load` a broken import is not known, and platform and policy are."""
    done = five.run("list", "--all", "--json", **DENY)
    assert done.returncode == 0, done.stderr
    assert states(done.stdout) == {
        "good": "not loaded",
        "spare": "not loaded",
        "broken": "not loaded",
        "unsupported": "wrong platform",
        "denied": "denied by policy",
    }
    assert imported(five) == []


@needs_torch
def test_loading_finds_the_broken_one_and_two_work(five: Site) -> None:
    """With `--load` all five are explained, two are usable, and the exit code is 1."""
    done = five.run("list", "--all", "--load", "--json", **DENY)
    assert done.returncode == 1, done.stderr
    assert states(done.stdout) == {
        "good": "loaded",
        "spare": "loaded",
        "broken": "broken import",
        "unsupported": "wrong platform",
        "denied": "denied by policy",
    }
    told = {each["name"]: each["failure"] for each in json.loads(done.stdout)["providers"] if each["failure"]}
    assert "library_that_is_not_there" in told["broken"]["traceback"]
    assert "faraway" in told["unsupported"]["reason"]
    assert "VLLM_IR_PROVIDERS_DISABLED" in told["denied"]["reason"]
    assert imported(five) == []


@needs_torch
def test_a_person_sees_the_reasons_and_the_traceback(five: Site) -> None:
    """The table names all five, each reason is a sentence, and the traceback stands once."""
    done = five.run("list", "--all", "--load", **DENY)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert {line.partition(" ")[0] for line in lines} >= FIVE
    assert done.stdout.count("Traceback (most recent call last)") == 1
    assert "ModuleNotFoundError: No module named 'library_that_is_not_there'" in done.stdout
    assert "1 of them broken" in done.stdout


def test_without_all_the_others_are_counted(five: Site) -> None:
    """What is left out is said, with the way to see it."""
    done = five.run("list", **DENY)
    assert "unsupported" not in done.stdout
    rows = json.loads(five.run("list", "--all", "--json", **DENY).stdout)["providers"]
    # Besides the five there may be wheels of this environment, such as kernels for a GPU that is not here.
    own = [each["state"] for each in rows if each["distribution"].startswith("dist-")]
    others = [each["state"] for each in rows if not each["distribution"].startswith("dist-")]
    assert sum(state != "not loaded" for state in own) == 2
    assert f"{2 + others.count('not usable')} cannot (vllm-ir list --all tells why)" in " ".join(done.stdout.split())
    assert done.returncode == 0


def test_eighty_columns_are_enough(five: Site) -> None:
    """No line is longer than the terminal, short of a path that cannot be folded."""
    done = five.run("list", "--all", **DENY)
    assert max(len(line) for line in done.stdout.splitlines() if "/" not in line) <= 80


def test_a_list_of_architectures_leaves_the_others_their_columns(site: Site) -> None:
    """On a terminal the platform's name is enough; where nobody looks, all of it is there."""
    site.add_provider("broad", platform="rocm")
    manifest = site.folder / "pack_broad" / "vllm_ir_provider.toml"
    many = ", ".join(f'"gfx9{number:02}"' for number in range(20))
    text = manifest.read_text(encoding="utf-8").replace("rocm = {}", f"rocm = {{ gfx = [{many}] }}")
    manifest.write_text(text, encoding="utf-8")
    cells = [line.split() for line in site.run("list", "--all", COLUMNS="125").stdout.splitlines()]
    assert ["broad", "wrong", "platform", "rocm", "1", "dist-broad", "1.0"] in cells
    assert "rocm (gfx900, gfx901," in site.run("list", "--all", COLUMNS="").stdout


def test_a_pipe_gets_one_line_a_provider_with_the_ops_by_name(five: Site) -> None:
    """Where nobody looks a row is whole, so that grep finds an op's providers."""
    row = next(line for line in five.run("list", COLUMNS="").stdout.splitlines() if line.startswith("native "))
    assert "rms_norm, fused_add_rms_norm" in row
    assert "vllm-ir 0.1.0" in row


def test_torch_is_not_imported(five: Site) -> None:
    """The verb works where torch is broken."""
    (five.folder / "torch").mkdir()
    (five.folder / "torch" / "__init__.py").write_text("raise SystemExit('torch was imported')", encoding="utf-8")
    verbs = (
        ["list", "--all"],
        ["list", "--json", "--platform", "cuda:9.0"],
        ["show", "good"],
        ["explain", "rms_norm", "--static"],
        ["explain", "rms_norm", "--platform", "rocm:gfx942"],
    )
    for done in five.run_each(verbs):
        assert done.returncode == 0, done.stderr
        assert "torch was imported" not in done.stderr


def test_a_hidden_copy_is_shown(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One distribution twice on the path: the first wins and the second is told."""
    site.add_provider("good")
    second = type(site)(tmp_path_factory.mktemp("behind"))
    second.add_provider("good")
    metadata = second.folder / "dist_good-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text(encoding="utf-8").replace("1.0", "0.9"), encoding="utf-8")
    done = site.run("list", PYTHONPATH=f"{site.folder}:{second.folder}")
    assert "version 0.9 in" in done.stdout
    assert done.returncode == 0


def test_an_allow_list_with_an_unknown_name_is_a_usage_error(five: Site) -> None:
    """A deployment that pins what is not installed hears so, with the nearest name."""
    done = five.run("list", VLLM_IR_PROVIDERS="goood")
    assert done.returncode == 2
    assert "Did you mean 'good'?" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("load", [[], pytest.param(["--load"], marks=needs_torch)])
def test_two_distributions_with_one_provider_are_rows_beside_the_others(site: Site, load: list[str]) -> None:
    """A program stops there; a list goes on, and says it of both although nobody asked for all."""
    site.add_provider("good")
    site.add_provider("spare")
    site.add("dist-other", {"vllm_ir.providers": "good = pack_good.hooks"}, {})
    done = site.run("list", *load)
    assert done.returncode == 1, done.stderr
    cells = [line.split() for line in done.stdout.splitlines()]
    for distribution in ("dist-good", "dist-other"):
        assert ["good", "duplicate", "provider", "cpu", "1", distribution, "1.0"] in cells
    assert ["spare", *(["loaded"] if load else ["not", "loaded"]), "cpu", "1", "dist-spare", "1.0"] in cells
    assert " ".join(done.stdout.split()).count("is brought by 2 distributions: 'dist-good', 'dist-other'.") == 1
    assert "2 of them broken" in " ".join(done.stdout.split())
    assert done.stderr == ""


@needs_torch
def test_a_crash_beside_two_distributions_with_one_provider_hides_neither(site: Site) -> None:
    """Loaded each in a child of its own, neither of the two would meet the other."""
    site.add_provider("good")
    site.add("dist-other", {"vllm_ir.providers": "good = pack_good.hooks"}, {})
    site.add_provider("crashing", hooks="import os\nos.abort()\n")
    done = site.run("list", "--load", "--all", "--json")
    assert done.returncode == 1, done.stderr
    kinds = {each["distribution"]: (each["failure"] or {}).get("kind") for each in json.loads(done.stdout)["providers"]}
    assert (kinds["dist-good"], kinds["dist-other"]) == ("duplicate provider", "duplicate provider")
    assert (kinds["dist-crashing"], kinds["vllm-ir"]) == ("broken import", None)


@pytest.mark.parametrize("load", [[], pytest.param(["--load"], marks=needs_torch)])
def test_a_misspelt_name_in_the_deny_list_is_a_note(site: Site, load: list[str]) -> None:
    """Who denies a provider and finds it in the list reads below it why."""
    site.add_provider("good")
    done = site.run("list", *load, VLLM_IR_PROVIDERS_DISABLED="goood")
    assert done.returncode == 0, done.stderr
    said = "VLLM_IR_PROVIDERS_DISABLED names 'goood', which nothing here has. Did you mean 'good'?"
    assert said in " ".join(done.stdout.split())
    assert done.stderr == ""
    done = site.run("list", *load, "--json", VLLM_IR_PROVIDERS_DISABLED="goood")
    assert json.loads(done.stdout)["doubts"] == [said]


SENTENCE = "vllm-ir list --load needs torch, which is not installed here. Install it, or ask `vllm-ir list`.\n"


def test_without_torch_loading_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names the question that can be answered, and nothing is started."""
    monkeypatch.setattr(listing, "find_spec", lambda _: None)
    assert main(["list", "--load"]) == 2
    assert capsys.readouterr() == ("", f"vllm-ir: {SENTENCE}")


@pytest.mark.skipif(find_spec("torch") is not None, reason="asks an environment that has no torch")
def test_an_environment_without_torch_lists_and_does_not_load(site: Site) -> None:
    """From files it answers as everywhere."""
    site.add_provider("good")
    assert site.run("list").returncode == 0
    done = site.run("list", "--load")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"vllm-ir: {SENTENCE}")


def test_nothing_to_list_is_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty table is no success."""
    platform = {"name": "cpu", "devices": [], "torch_build": "unknown"}
    monkeypatch.setattr(listing, "read", lambda _: Inventory(platform, ()))
    assert listing.run([]) == 3


def test_a_distribution_that_cannot_be_read_has_a_row() -> None:
    """Without a manifest the entry point's name stands for the provider."""
    failure = {"kind": "manifest missing", "reason": "It has none.", "fault": True, "traceback": None}
    one: dict[str, Any] = {
        "entry_point": "mine", "name": "dist", "version": "1", "failure": failure, "providers": [], "shadowed": [],
    }  # fmt: skip
    found = Inventory({}, (one,))
    assert [(each["name"], each["state"]) for each in found.providers] == [("mine", "not usable")]
    assert (len(found.usable), len(found.faults)) == (0, 1)


@pytest.mark.parametrize(
    ("devices", "line"),
    [
        ([], "cuda: no device found, torch 2.13"),
        ([("H200", "9.0", None)] * 8, "cuda 9.0: 8 x H200, torch 2.13"),
        ([("MI300X", None, "gfx942")], "cuda gfx942: MI300X, torch 2.13"),
    ],
)
def test_the_machine_in_a_line(devices: list[tuple[str, str | None, str | None]], line: str) -> None:
    """Name, architecture and how many, as far as they are known."""
    named = [{"name": name, "capability": capability, "gfx": gfx} for name, capability, gfx in devices]
    assert describe_platform({"name": "cuda", "devices": named, "torch_build": "2.13"}) == line
