"""`vllm-ir doctor`: one report, from files alone; and with `--probe` what crashes, leaves or hangs is a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import vllm_ir
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.manifest_file import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.cli.conftest import Site

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")

OWN = Path(vllm_ir.__file__).with_name("vllm_ir_provider.toml")
ELSEWHERE = ",".join(each.name for each in scan() if each.name != "vllm-ir" and each.providers)
"""Distributions with providers that are installed here whatever the test makes."""

# Braces are doubled, since a provider's name is filled in.
HOOKS = """
from torch import Tensor
from vllm_ir import hookimpl, implements

@implements("rms_norm", provider="{{provider}}")
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    {body}

@hookimpl
def vllm_ir_implementations(platform):
    return [rms_norm]
"""

GOOD = """
from torch import Tensor
from vllm_ir import hookimpl, implements, Unsupported
import os, pathlib, torch

def bfloat16(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool | Unsupported:
    return x.dtype == torch.bfloat16 or Unsupported("needs bfloat16")

@implements("rms_norm", provider="{provider}", supports_args=bfloat16)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    from vllm_ir import ops
    print("noise on stdout")
    return ops.rms_norm.impls["native"].impl_fn(x, weight, epsilon, variance_size)

@hookimpl
def vllm_ir_implementations(platform):
    return [rms_norm]

@hookimpl
def vllm_ir_warm_up(platform, device, dtypes):
    with open(os.path.join(os.environ["VLLM_IR_CACHE"], "warm"), "a") as file:
        file.write(" ".join(map(str, dtypes)) + "\\n")
"""


@pytest.fixture(scope="module")
def probed(make_site: Callable[[], Site], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Give the report of one probe of providers that end in every way there is, and its exit code."""
    site = make_site()
    cache = tmp_path_factory.mktemp("cache")
    site.add_provider("leaves", hooks=HOOKS.format(body="import os; os._exit(1)"))
    site.add_provider("crashes", hooks=HOOKS.format(body="import ctypes; ctypes.string_at(0)"))
    site.add_provider("sleeps", hooks=HOOKS.format(body="import time; time.sleep(1e9)"))
    site.add_provider("wrong", hooks=HOOKS.format(body="return x.clone()"))
    site.add_provider("broken", hooks="1 / 0\n")
    site.add_provider("good", hooks=GOOD)
    site.add_provider("denied", hooks="open('denied was imported', 'w')\n")
    done = site.run(
        "doctor", "--probe", "--timeout", "10", "--json",
        VLLM_IR_PROVIDERS_DISABLED=f"{ELSEWHERE},denied", VLLM_IR_CACHE=str(cache),
        VLLM_IR_OP_PRIORITY="rms_norm=absent", VLLM_BATCH_INVARIANT="1",
    )  # fmt: skip
    told: dict[str, Any] = json.loads(done.stdout)
    rows = {each["provider"]: each for each in told["probes"]}
    warm = (cache / "warm").read_text(encoding="utf-8").split()
    return {**told, "code": done.returncode, "rows": rows, "warm": warm, "err": done.stderr}


@needs_torch
def test_a_crash_an_exit_and_a_hang_are_three_rows(probed: dict[str, Any]) -> None:
    """Each with what it did last, and the exit code is that of a finding; the others are not harmed."""
    rows = probed["rows"]
    assert probed["code"] == 1
    assert {name: each["outcome"] for name, each in rows.items()} == {
        "native": "runs", "unfused": "runs", "leaves": "crashed", "crashes": "crashed", "sleeps": "timed out",
        "wrong": "differs", "broken": "fails", "good": "runs",
    }  # fmt: skip
    step = "running rms_norm, float32"
    assert rows["leaves"]["reason"] == f"{step}: its process was ended by exit code 1 before it had done its work."
    assert rows["crashes"]["reason"] == f"{step}: its process was ended by SIGSEGV."
    assert rows["sleeps"]["reason"].startswith(f"{step}: it took more than 10 seconds and was ended")


@needs_torch
def test_where_it_crashed_or_hung_is_in_the_report(probed: dict[str, Any]) -> None:
    """Python's fault handler tells the line, in both."""
    for name in ("crashes", "sleeps"):
        assert f"pack_{name}/hooks.py" in probed["rows"][name]["output"]
    assert "ZeroDivisionError" in probed["rows"]["broken"]["traceback"]
    assert "Distribution dist-broken did not load" in probed["rows"]["broken"]["reason"]
    assert "The traceback is in this report; " in probed["rows"]["broken"]["reason"]
    assert "Aborted" not in probed["rows"]["sleeps"]["output"]
    assert "(vllm-ir ended it: took more than 10 seconds and was ended" in probed["rows"]["sleeps"]["output"]


@needs_torch
def test_what_is_wrong_is_told_with_how_much(probed: dict[str, Any]) -> None:
    """A provider that runs and computes something else is a finding."""
    wrong = probed["rows"]["wrong"]
    assert wrong["reason"].startswith("rms_norm, float32: it differs from native: Mismatched elements: ")
    assert wrong["reason"].endswith("(2 more below)")
    assert [part["outcome"] for part in wrong["parts"]] == ["differs"] * 3


@needs_torch
def test_what_is_right_is_told_op_by_op(probed: dict[str, Any]) -> None:
    """Refusals are no findings; every dtype is warmed up before anything runs, in the cache that was named."""
    parts = [(part["what"], part["dtype"], part["outcome"], part["reason"]) for part in probed["rows"]["good"]["parts"]]
    dtypes = ("float32", "bfloat16", "float16")
    assert parts == [
        *(("warm-up", dtype, "done", None) for dtype in dtypes),
        ("rms_norm", "float32", "refuses", "needs bfloat16"),
        ("rms_norm", "bfloat16", "agrees", None),
        ("rms_norm", "float16", "refuses", "needs bfloat16"),
    ]
    assert probed["warm"] == [f"torch.{dtype}" for dtype in dtypes]
    native = probed["rows"]["native"]["parts"]
    assert {part["outcome"] for part in native} == {"agrees"}
    assert len(native) == len(dtypes) * len(read_manifest(OWN.read_bytes(), str(OWN), reserved=()).adds_ops)


@needs_torch
def test_what_is_denied_is_not_run_and_what_is_asked_of_dispatch_does_not_count(probed: dict[str, Any]) -> None:
    """A denied provider has no row in the probe; a wrong priority is a run's business and stops no probe."""
    states = {each["name"]: each["state"] for one in probed["distributions"] for each in one["providers"]}
    assert states["denied"] == "not usable"
    assert "denied" not in probed["rows"]
    findings = "\n".join(probed["findings"])
    for name in ("leaves", "crashes", "sleeps", "wrong", "broken"):
        assert f"provider {name} of dist-{name}: " in findings
    assert "VLLM_IR_OP_PRIORITY: provider 'absent' for op 'rms_norm' is not installed" in findings
    assert len(probed["findings"]) == 6


def test_without_a_probe_nothing_is_imported(site: Site) -> None:
    """No torch and no provider, and the report has every part; nothing to mend is exit 0."""
    site.add_provider("explodes", hooks="raise SystemExit('a provider was imported')\n")
    site.add_verb("greet", "dist-host", "raise SystemExit('a host was imported')\n")
    code = (
        "import sys\nfrom vllm_ir.cli.main import main\ncode = main(['doctor', '--json'])\n"
        "print([name for name in sys.modules if name in ('torch', 'rich', 'pack_explodes')], code, file=sys.stderr)"
    )
    variables = {"PYTHONPATH": str(site.folder), "VLLM_IR_CACHE": str(site.folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables}, cwd=site.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.strip() == "[] 0"
    told = json.loads(done.stdout)
    assert set(told) == {
        "version", "findings", "versions", "platform", "distributions", "variables", "files", "caches", "probes",
    }  # fmt: skip
    assert (told["findings"], told["probes"]) == ([], None)
    assert {"vllm-ir", "torch", "python", "system", "dist-explodes", "dist-host"} <= set(told["versions"])
    assert [each["name"] for one in told["distributions"] for each in one["providers"]][:3] == [
        "native",
        "unfused",
        "explodes",
    ]


def test_whatever_stops_a_run_does_not_stop_the_report(site: Site) -> None:
    """Variables, lists, files and folders that are wrong are findings, all of them at once, and exit 1."""
    site.add_provider("explodes", hooks="raise SystemExit\n")
    site.add("dist-bare", {"vllm_ir.providers": "bare = pack_bare.hooks"}, {"pack_bare/__init__.py": ""})
    (site.folder / "vllm-ir.toml").write_text("op-priority = 3\n", encoding="utf-8")
    cache = site.folder / "cache"
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    done = site.run(
        "doctor", "--json",
        VLLM_IR_STRICT="perhaps", VLLM_IR_PROVIDRES="x", VLLM_IR_PROVIDERS="absent", VLLM_IR_CACHE=str(cache),
        VLLM_IR_LOCK=str(site.folder / "no.lock"), VLLM_IR_OP_PRIORITY="rms_norm",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    findings = "\n".join(told["findings"])
    for part in (
        "VLLM_IR_STRICT=perhaps: ",
        "VLLM_IR_PROVIDRES=x: It means nothing to vllm-ir and is ignored. Did you mean 'VLLM_IR_PROVIDERS'?",
        "VLLM_IR_OP_PRIORITY=rms_norm: ",
        f"settings {site.folder / 'vllm-ir.toml'}: ",
        f"lock {site.folder / 'no.lock'}: ",
        f"cache {cache}: Others can write it, and what it holds is run as code: chmod 700 {cache}.",
        "vllm_ir_provider.toml",
    ):
        assert part in findings, part
    names = [each["name"] for one in told["distributions"] for each in one["providers"]]
    assert {"native", "explodes", "bare"} <= set(names)


def test_an_allow_list_in_vain_is_a_finding(site: Site) -> None:
    """With the sentence that a run would stop with, and everything that is installed all the same."""
    site.add_provider("good")
    done = site.run("doctor", "--json", VLLM_IR_PROVIDERS="goood")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert any("VLLM_IR_PROVIDERS names 'goood'" in each for each in told["findings"])
    assert "good" in [each["name"] for one in told["distributions"] for each in one["providers"]]


def test_what_is_not_as_it_was_installed_is_a_finding(site: Site, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A library that was cut, a package that another folder hides, a RECORD that is a pipe: each with what mends it."""
    for name in ("cut", "hidden", "piped", "whole"):
        site.add_provider(name)
    library = site.folder / "pack_cut" / "kernels.so"
    library.write_bytes(bytes(5000))
    names = [f"pack_cut/{name}" for name in ("__init__.py", "hooks.py", "vllm_ir_provider.toml", "kernels.so")]
    site.record(site.folder / "dist_cut-1.0.dist-info", names)
    os.truncate(library, 1000)
    record = site.folder / "dist_piped-1.0.dist-info" / "RECORD"
    record.unlink()
    os.mkfifo(record)
    before = tmp_path_factory.mktemp("before")
    (before / "pack_hidden").mkdir()
    (before / "pack_hidden" / "__init__.py").touch()
    path = f"{before}{os.pathsep}{site.folder}"
    done = subprocess.run(
        [sys.executable, "-m", "vllm_ir", "doctor", "--json"], env={**os.environ, "PYTHONPATH": path}, cwd=before,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    damaged = [each for each in json.loads(done.stdout)["findings"] if each.startswith("distribution dist-")]
    reinstall = "Reinstall it: pip install --force-reinstall --no-deps dist-cut==1.0."
    off = "Take that folder off the path (PYTHONPATH, a .pth file, the working folder)."
    hiding = (before / "pack_hidden").resolve()
    elsewhere = f"that Python imports it from {hiding}"
    pipe = "its RECORD cannot be read (it is no plain file), so nobody can tell whether its files are its own."
    changed = "not as installed: wanted"
    assert damaged == [
        f"distribution dist-cut, file pack_cut/kernels.so: {changed} 5000 bytes, found 1000 bytes. {reinstall}",
        f"distribution dist-hidden, package pack_hidden: {changed} the installed files, found {elsewhere}. {off}",
        f"distribution dist-piped: {pipe}",
    ]


def test_a_lock_that_nobody_enforces_is_held_against_the_machine(locked: Site) -> None:
    """In the place where a problem of one in force would stand; it is no finding, and none where all is as locked."""
    assert json.loads(locked.run_alone("doctor", "--json").stdout)["files"][0]["note"] is None
    locked.add_provider("more", default=True)
    (told,) = json.loads(locked.run_alone("doctor", "--json").stdout)["files"]
    assert told["problem"] is None
    assert told["note"].startswith("Not in force, and this machine is not what it says. distribution dist-more: ")
    assert " more: vllm-ir check --fast)" in told["note"]
    done = locked.run_alone("doctor")
    assert "(and " in next(line for line in done.stdout.splitlines() if line.startswith("| lock | "))
    assert "lock" not in done.stdout.partition("## versions")[0]


def test_a_pipe_gets_markdown(site: Site) -> None:
    """Headings, lists and tables, every row on one line, and no line that a forum would take for its own."""
    site.add_provider("faraway", platform="npu")
    done = site.run("doctor", VLLM_IR_PROVIDRES="a|b")
    lines = done.stdout.splitlines()
    assert lines[0] == "# vllm-ir doctor: 1 finding"
    assert "## findings" in lines
    assert [line for line in lines if line.startswith("| faraway | wrong platform | dist-faraway 1.0 | ")]
    assert "| VLLM_IR_PROVIDRES | a\\|b | " in done.stdout
    assert "## files in force" not in lines


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--timeout", "0"], "argument --timeout: '0' is no number of seconds above zero"),
        (["--timeout", "soon"], "argument --timeout: 'soon' is no number of seconds above zero"),
        (["--jobs", "0"], "argument --jobs: '0' is no whole number above zero"),
        (["--jobs", "1.5"], "argument --jobs: '1.5' is no whole number above zero"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_wrong_usage_is_exit_2(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit that nothing could keep is refused."""
    from vllm_ir.cli import doctor

    with pytest.raises(SystemExit) as stopped:
        doctor.run(["--probe", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "usage: vllm-ir doctor" in said
    assert sentence in said


def test_without_torch_a_probe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the report that can be had."""
    from vllm_ir.cli import doctor
    from vllm_ir.errors import TorchMissing

    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    with pytest.raises(TorchMissing, match="ask `vllm-ir doctor`"):
        doctor.run(["--probe"])


def test_at_a_terminal_it_is_laid_out(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: Callable[[int], None],
    tmp_path: Path,
) -> None:  # fmt: skip
    """No Markdown, no line that is too long, and the first line says whether there is anything to mend."""
    from vllm_ir.cli import doctor

    columns(80)
    site.add_provider("faraway", platform="npu")
    monkeypatch.syspath_prepend(str(site.folder))
    monkeypatch.setenv("VLLM_IR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    doctor.run([])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("vllm-ir doctor: ")
    assert not [line for line in lines if line.startswith(("#", "| "))]
    assert [line for line in lines if len(line) > 80 and "/" not in line] == []
