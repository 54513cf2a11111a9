"""What goes wrong with providers in a fleet, in one fresh environment with really built and really installed wheels.

Two wheels are built as their author would, the others are written as no author would; all are installed by pip.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.conftest import Fresh, Workspace

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")

CORE = {"native", "unfused"}
"""The providers that the core brings."""

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "drill-{name}"
version = "1.0"
[project.entry-points."vllm_ir.providers"]
{name} = "drill_{name}.hooks"
[tool.hatch.build.targets.wheel]
packages = ["drill_{name}"]
"""

MANIFEST = """
schema = 1
provider-api = "1"
summary = "A provider for drills."
[providers.{name}.platforms]
cpu = {{}}
[providers.{name}.ops]
{ops}
"""

DEFAULT = """
[providers.{name}.default.eager]
rms_norm = ["cpu"]
"""

GOOD = """
from vllm_ir import hookimpl

@hookimpl
def vllm_ir_implementations(platform):
    from torch import Tensor
    from vllm_ir import implements

    @implements("rms_norm", provider="good")
    def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        return x + 1

    return [rms_norm]
"""

TORN = """
from torch import Tensor
from vllm_ir import hookimpl, ops

@ops.silu_and_mul.register_impl("torn")
def silu_and_mul(x: Tensor) -> Tensor:
    return x

@ops.gelu_and_mul.register_impl("torn")
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    return x

raise OSError("the third needs a file that is not there")
"""

MISSPELT = """
from vllm_ir import hookimpl

@hookimpl
def vllm_ir_implementation(platform):
    return []
"""

TRAP = "import pathlib\npathlib.Path(__file__).with_name('executed').touch()\n"
"""What a package must not be asked to do by a question about files."""

LIVE = """
import json, logging, multiprocessing, sys

def digest(_):
    from vllm_ir.plugins import load_providers
    return load_providers().digest

if __name__ == "__main__":
    import torch
    from vllm_ir import ops, providers
    from vllm_ir.plugins import discovery, probe
    answer = {"served": ops.rms_norm(torch.zeros(2, 4), None, 1e-6)[0, 0].item()}
    answer["torn"] = [op.name for op in (ops.silu_and_mul, ops.gelu_and_mul) if "torn" in op.impls]
    answer["states"] = {each.name: each.state for each in providers()}
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    answer["summary"] = discovery.show_summary()
    ways = [multiprocessing.get_context(way).Pool(1) for way in ("spawn", "fork")]
    digests = [digest(0), *(pool.map(digest, [0])[0] for pool in ways), probe.load_in_child()["digest"]]
    answer["digests"] = len(set(digests))
    print(json.dumps(answer))
"""

CONFLICT = """
import json, torch
from vllm_ir import errors, ops
try:
    ops.rms_norm(torch.zeros(2, 4), None, 1e-6)
except errors.DuplicateProvider as error:
    print(json.dumps(str(error)))
"""


def write_wheel(folder: Path, name: str, entry_point: str, files: Mapping[str, str], version: str = "1.0") -> str:
    """Write a wheel as an installer takes it, with whatever entry point and files, and return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"{stem}.dist-info"
    contents = {
        **files,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{metadata}/entry_points.txt": f"[vllm_ir.providers]\n{entry_point}\n",
    }
    rows = []
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, text in contents.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{file},sha256={digest},{len(text.encode())}\n")
            archive.writestr(file, text)
        archive.writestr(f"{metadata}/RECORD", "".join([*rows, f"{metadata}/RECORD,,\n"]))
    return str(path)


def package(name: str, hooks: str, manifest: str) -> dict[str, str]:
    """Return the files of a provider's package, which says so when it is imported."""
    return {
        f"drill_{name}/__init__.py": TRAP,
        f"drill_{name}/hooks.py": hooks,
        f"drill_{name}/vllm_ir_provider.toml": manifest,
    }


def right(name: str, ops: tuple[str, ...] = ("rms_norm",)) -> str:
    """Return a right manifest."""
    return MANIFEST.format(name=name, ops="\n".join(f"{op} = {{}}" for op in ops))


MALICIOUS = {
    "huge": ("huge = drill_huge.hooks", "# " + "x" * 80 + "\n"),
    "deep": ("deep = drill_deep.hooks", "x = " + "[" * 100_000 + "]" * 100_000),
    "binary": ("binary = drill_binary.hooks", "schema = 1\x00\x1b[2J"),
    "escaping": ("escaping = drill_escaping.hooks", right("../../escaping")),
    "climbing": ("climbing = ../../drill_climbing.hooks", right("climbing")),
    "calling": ("calling = os:system", right("calling")),
    "painting": (
        "painting = drill_painting.hooks",
        right("painting").replace("A provider for drills.", "\\u001b[2Jnothing is wrong here"),
    ),
    "dotted": ("dotted = ...drill_dotted", right("dotted")),
}
"""What a package may hold that no author would write: its entry point and its manifest, each under its name."""


@pytest.fixture(scope="module")
def wheels(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the core and two providers, and write those that nobody would build."""
    folder = tmp_path_factory.mktemp("drills")
    homes = [workspace.root / "core"]
    three = ("silu_and_mul", "gelu_and_mul", "rms_norm")
    for name, hooks, ops in (("good", GOOD, ("rms_norm",)), ("torn", TORN, three)):
        home = folder / name
        (home / f"drill_{name}").mkdir(parents=True)
        (home / "pyproject.toml").write_text(PROJECT.format(name=name), encoding="utf-8")
        for file, text in package(name, hooks, right(name, ops) + DEFAULT.format(name=name)).items():
            (home / file).write_text(text, encoding="utf-8")
        homes.append(home)
    out = folder / "wheels"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out)]
    done = subprocess.run([*command, *map(str, homes)], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    misspelt = package("misspelt", MISSPELT, right("misspelt"))
    write_wheel(out, "drill-misspelt", "misspelt = drill_misspelt.hooks", misspelt)
    write_wheel(out, "drill-absent", "absent = drill_absent.gone", package("absent", "", right("absent")))
    newer = right("newer").replace("schema = 1", "schema = 2")
    write_wheel(out, "drill-newer", "newer = drill_newer.hooks", package("newer", TRAP, newer))
    for name, (entry_point, manifest) in MALICIOUS.items():
        text = manifest * 100_000 if name == "huge" else manifest
        write_wheel(out, f"drill-{name}", entry_point, package(name, TRAP, text))
    return out


@pytest.fixture(scope="module")
def fleet(make_fresh: Callable[[Path], Fresh], wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Give an environment in which all of them are installed."""
    made = make_fresh(tmp_path_factory.mktemp("fleet") / "env")
    malicious = {wheels / f"drill_{name}-1.0-py3-none-any.whl" for name in MALICIOUS}
    made.pip("install", "--no-deps", *map(str, sorted({*wheels.glob("*.whl")} - malicious)))
    for path in malicious:  # unpacked, as some installers do: the pip of Python 3.10 stops at such entry points
        with zipfile.ZipFile(path) as archive:
            archive.extractall(made.site)
    return made


def listed(fleet: Fresh, *arguments: str, **variables: str) -> tuple[int, dict[str, dict[str, Any]], dict[str, Any]]:
    """Return exit code, providers by name and the whole answer of `vllm-ir list --all`."""
    done = fleet.run("-m", "vllm_ir", "list", "--all", "--json", *arguments, cwd=None, **variables)
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    return done.returncode, {each["name"]: each for each in told["providers"]}, told


def executed(fleet: Fresh) -> list[str]:
    """Return the packages that were imported, and forget it."""
    marks = list(fleet.site.glob("drill_*/executed"))
    for mark in marks:
        mark.unlink()
    return sorted(mark.parent.name for mark in marks)


def test_files_of_any_kind_are_told_and_run_nothing(fleet: Fresh) -> None:
    """Huge, deep, binary, climbing out of its folder, calling what it should not: a row each, and no code of theirs."""
    code, found, _ = listed(fleet)
    assert code == 1
    kinds = {name: each["failure"]["kind"] for name, each in found.items() if each["failure"]}
    assert {name: kinds[name] for name in (*MALICIOUS, "newer")} == {
        "huge": "manifest malformed",
        "deep": "manifest malformed",
        "binary": "manifest malformed",
        "escaping": "manifest malformed",
        "climbing": "broken import",
        "calling": "manifest missing",
        "painting": "manifest malformed",
        "dotted": "broken import",
        "newer": "manifest newer",
    }
    assert {name for name in found if name not in kinds} == {*CORE, "good", "torn", "misspelt", "absent"}
    assert executed(fleet) == []
    for verb in (["show", "good"], ["show", "painting"], ["explain", "rms_norm", "--static"], ["doctor"]):
        done = fleet.run("-m", "vllm_ir", *verb)
        assert done.returncode in (0, 1), done.stderr
        assert "\x1b" not in done.stdout + done.stderr
    assert executed(fleet) == []


@needs_torch
def test_broken_ones_among_them_leave_the_good_one_working(fleet: Fresh) -> None:
    """Loaded in a child process: each failure has its kind and its cause, and what may not load was not imported."""
    code, found, _ = listed(fleet, "--load")
    assert code == 1
    assert (found["native"]["state"], found["good"]["state"]) == ("loaded", "loaded")
    failures = {name: found[name]["failure"] for name in ("torn", "misspelt", "absent")}
    assert {name: each["kind"] for name, each in failures.items()} == {
        "torn": "broken import", "misspelt": "misspelt hook", "absent": "broken import",
    }  # fmt: skip
    assert "the third needs a file that is not there" in failures["torn"]["traceback"]
    assert "Did you mean 'vllm_ir_implementations'?" in failures["misspelt"]["reason"]
    assert executed(fleet) == ["drill_absent", "drill_good", "drill_misspelt", "drill_torn"]


@needs_torch
def test_a_process_goes_on_with_what_works(fleet: Fresh) -> None:
    """The good one serves, two of three are none, the summary can be shown late, and all processes see the same."""
    (fleet.folder / "live.py").write_text(LIVE, encoding="utf-8")
    done = fleet.run("live.py")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["served"] == 1.0
    assert told["torn"] == []
    assert {name for name, state in told["states"].items() if state == "loaded"} == {*CORE, "good"}
    assert f"INFO:vllm_ir:{told['summary']}" in done.stderr
    for part in ("good serves 1 op", "torn (broken import)", "huge (manifest malformed)"):
        assert part in told["summary"]
    assert told["digests"] == 1
    executed(fleet)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(" good , native ", {*CORE, "good"}), ("", CORE), ("drill-good", {*CORE, "good"})],
)
def test_an_allow_list_is_read_as_it_is_meant(fleet: Fresh, value: str, wanted: set[str]) -> None:
    """Blanks are none of a name, an empty list is none but the core's own, and a distribution's name is one, too."""
    _, found, _ = listed(fleet, VLLM_IR_PROVIDERS=value)
    assert {name for name, each in found.items() if each["failure"] is None} == wanted
    assert executed(fleet) == []


def test_an_allow_list_with_a_name_that_is_not_installed_stops(fleet: Fresh) -> None:
    """With the nearest name, and exit 2."""
    done = fleet.run("-m", "vllm_ir", "list", VLLM_IR_PROVIDERS="goood")
    assert done.returncode == 2
    assert "VLLM_IR_PROVIDERS names 'goood'" in done.stderr
    assert "Did you mean 'good'?" in done.stderr


def test_a_canary_over_the_installed_one(fleet: Fresh, tmp_path: Path) -> None:
    """A newer copy before the installed one on the path: it wins, and the other is shown."""
    wheel = write_wheel(tmp_path, "drill-good", "good = drill_good.hooks", package("good", GOOD, right("good")), "1.1")
    fleet.pip("install", "--no-deps", "--target", str(tmp_path / "canary"), wheel)
    _, found, told = listed(fleet, PYTHONPATH=str(tmp_path / "canary"))
    assert found["good"]["version"] == "1.1"
    (one,) = [each for each in told["distributions"] if each["name"] == "drill-good"]
    assert [(each["version"], each["location"]) for each in one["shadowed"]] == [("1.0", str(fleet.site.resolve()))]


@pytest.fixture
def rival(fleet: Fresh, tmp_path: Path) -> Iterator[None]:
    """Install another distribution with the good one's provider, and take it away again."""
    files = {name.replace("good", "rival"): text for name, text in package("good", GOOD, right("good")).items()}
    fleet.pip("install", "--no-deps", write_wheel(tmp_path, "drill-rival", "good = drill_rival.hooks", files))
    yield
    fleet.pip("uninstall", "--yes", "drill-rival")


@needs_torch
@pytest.mark.usefixtures("rival")
def test_two_distributions_with_one_provider_stop_a_process(fleet: Fresh) -> None:
    """Both are named, with the way out, and nothing of either was imported; taking the way out lets it go on."""
    done = fleet.run("-c", CONFLICT)
    sentence = json.loads(done.stdout)
    assert "'drill-good', 'drill-rival'" in sentence
    assert executed(fleet) == []
    for denied, kinds in (("", ["duplicate provider"] * 2), ("drill-rival", [None, "denied by policy"])):
        _, _, told = listed(fleet, VLLM_IR_PROVIDERS_DISABLED=denied)
        rows = {each["distribution"]: each["failure"] for each in told["providers"] if each["name"] == "good"}
        assert [rows[name] and rows[name]["kind"] for name in ("drill-good", "drill-rival")] == kinds
