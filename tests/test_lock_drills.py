"""Locks in fresh environments with really built wheels: what an operator meets after the lock was written.

The wheels are built once; each drill leaves the environments as it found them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import vllm_ir
from vllm_ir.plugins.manifest_file import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Fresh, Workspace

OWN = Path(vllm_ir.__file__).with_name("vllm_ir_provider.toml")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "Drill.Provider"
version = "{version}"
[project.scripts]
drill = "drill_provider.hooks:main"
[project.entry-points."vllm_ir.providers"]
drill = "drill_provider.hooks"
[tool.hatch.build.targets.wheel]
packages = ["drill_provider"]
artifacts = ["*.so"]
"""

MANIFEST = """
schema = 1
provider-api = "1"
summary = "A provider for drills."
[providers.drill.platforms]
cpu = {}
[providers.drill.ops.rms_norm]
[providers.drill.default.eager]
rms_norm = ["cpu"]
"""

HOOKS = """
from vllm_ir import hookimpl, implements

@hookimpl
def vllm_ir_implementations(platform):
    from torch import Tensor

    @implements("rms_norm", provider="drill")
    def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        return x + 1

    return [rms_norm]

def main() -> None:
    pass
"""

RUN = """
import sys, torch
from vllm_ir import errors, ops
try:
    print("ran", ops.rms_norm(torch.ones(2, 8), torch.ones(8), 0.0)[0, 0].item())
except errors.LockMismatch as error:
    print("stopped", *error.differences, sep="|")
print("drill_provider" in sys.modules)
"""


@pytest.fixture(scope="module")
def wheels(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the core, the example provider and two versions of a provider with a native library."""
    folder = tmp_path_factory.mktemp("drill")
    for version in ("1.0", "1.1"):
        package = folder / version / "drill_provider"
        package.mkdir(parents=True)
        (folder / version / "pyproject.toml").write_text(PROJECT.format(version=version), encoding="utf-8")
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "hooks.py").write_text(HOOKS, encoding="utf-8")
        (package / "vllm_ir_provider.toml").write_text(MANIFEST, encoding="utf-8")
        (package / "_kernels.so").write_bytes(b"\x7fELF" + random.Random(0).randbytes(200_000))  # noqa: S311 - no secret
    ours = [workspace.root / "core", workspace.root / "docs" / "first_provider"]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "wheels")]
    for homes in ([*ours, folder / "1.0"], [folder / "1.1"]):  # pip takes one version of a name at a time
        done = subprocess.run([*command, *map(str, homes)], capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
    return folder / "wheels"


def install(fresh: Fresh, wheels: Path, *patterns: str, options: tuple[str, ...] = ()) -> None:
    """Install built wheels."""
    found = [str(path) for pattern in patterns for path in wheels.glob(pattern)]
    assert len(found) == len(patterns)
    fresh.pip("install", "--no-deps", *options, *found)


@pytest.fixture(scope="module")
def one(make_fresh: Callable[[Path], Fresh], wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Give an environment with the core and the drilled provider."""
    made = make_fresh(tmp_path_factory.mktemp("one") / "env")
    install(made, wheels, "vllm_ir-*", "drill_provider-1.0-*")
    return made


@pytest.fixture(scope="module")
def other(make_fresh: Callable[[Path], Fresh], wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Give another one, installed in another way: one wheel after the other and without bytecode."""
    made = make_fresh(tmp_path_factory.mktemp("other") / "env")
    for pattern in ("drill_provider-1.0-*", "vllm_ir-*"):
        install(made, wheels, pattern, options=("--no-compile",))
    return made


@pytest.fixture(scope="module")
def lock(one: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a lock of the first environment; it is never written to."""
    file = tmp_path_factory.mktemp("locks") / "vllm-ir.lock"
    done = one.run("-m", "vllm_ir", "lock", "--lock", str(file))
    orders = 2 * len(read_manifest(OWN.read_bytes(), str(OWN), reserved=()).adds_ops)
    assert (done.returncode, done.stdout) == (0, f"{file}: 2 distributions, {orders} orders on cpu.\n"), done.stderr
    return file


@contextlib.contextmanager
def altered(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """Alter an installed file, and bring it back."""
    kept, times = path.read_bytes(), path.stat()
    path.write_bytes(change(kept))
    try:
        yield
    finally:
        path.write_bytes(kept)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def check(fresh: Fresh, lock: Path, *options: str) -> tuple[int, list[str]]:
    """Return exit code and lines of `vllm-ir check`."""
    done = fresh.run("-m", "vllm_ir", "check", "--lock", str(lock), *options)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def start(fresh: Fresh, lock: Path) -> list[str]:
    """Return what a process under the lock prints that runs an op."""
    done = fresh.run("-c", RUN, VLLM_IR_LOCK=str(lock))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def middle(content: bytes) -> bytes:
    """Return a file with one byte in its middle changed."""
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_the_lock_is_the_same_each_time_and_in_both_environments(one: Fresh, other: Fresh, lock: Path) -> None:
    """Byte by byte, whatever folder, installer options, scripts and bytecode there are; and `check` is clean."""
    assert one.site != other.site
    assert "../../../bin/drill" in (other.site / "drill_provider-1.0.dist-info" / "RECORD").read_text(encoding="utf-8")
    for fresh in (one, one, other):
        again = lock.with_name("again.lock")
        fresh.run("-m", "vllm_ir", "lock", "--lock", str(again))
        assert again.read_bytes() == lock.read_bytes()
        again.unlink()
    for options in ((), ("--fast",), ("--strict",)):
        assert check(other, lock, *options) == (0, [f"{lock}: everything is as locked on cpu."])


@needs_torch
def test_an_environment_as_locked_runs(other: Fresh, lock: Path) -> None:
    """The locked provider runs the op."""
    assert start(other, lock) == ["ran 2.0", "True"]


def test_one_changed_byte_of_a_library(other: Fresh, lock: Path) -> None:
    """`check` names the file, also at a glance, and a process under the lock imports nothing and runs no op."""
    with altered(other.site / "drill_provider" / "_kernels.so", middle):
        for options in ((), ("--fast",)):
            code, lines = check(other, lock, *options)
            assert code == 1
            assert re.fullmatch(
                r"distribution drill-provider, file drill_provider/_kernels\.so: locked sha256:\w{16},"
                r" found sha256:\w{16}\. Reinstall it: pip install --force-reinstall --no-deps drill-provider==1\.0\.",
                lines[0],
            )
            assert lines[1:] == [f"{lock}: 1 difference on cpu."]
        if find_spec("torch") is not None:
            told, imported = start(other, lock)
            assert told == f"stopped|{lines[0]}"
            assert imported == "False"
    assert check(other, lock, "--fast")[0] == 0


def test_a_truncated_library(other: Fresh, lock: Path) -> None:
    """Said before anything could map it."""
    with altered(other.site / "drill_provider" / "_kernels.so", lambda content: content[:4096]):
        code, lines = check(other, lock, "--fast")
    assert (code, "locked 200004 bytes, found 4096 bytes" in lines[0]) == (1, True)


def test_a_changed_file_of_the_core(other: Fresh, lock: Path) -> None:
    """The native functions are locked like any other provider."""
    with altered(other.site / "vllm_ir" / "ops" / "layernorm.py", lambda content: content + b"\n"):
        code, lines = check(other, lock)
    assert (code, lines[0].startswith("distribution vllm-ir, file vllm_ir/ops/layernorm.py: locked ")) == (1, True)


def test_a_record_that_leads_out_of_its_folder(other: Fresh, lock: Path, tmp_path: Path) -> None:
    """It is a finding; the file outside, which nobody could read without waiting for ever, is not opened."""
    os.mkfifo(tmp_path / "secret")
    lines = f"{tmp_path}/secret,sha256={'A' * 43},5\n../../../../{'../' * 20}etc/passwd,sha256={'A' * 43},5\n".encode()
    with altered(other.site / "drill_provider-1.0.dist-info" / "RECORD", lambda content: content + lines):
        code, found = check(other, lock)
    assert code == 1
    assert "in RECORD: locked a file of the package, found a path that leads out of its folder." in found[0]
    assert "found an absolute path. Its wheel is not to be trusted, or was altered." in found[1]


@pytest.mark.parametrize("content", [b"x = " + b"[" * 100_000, b"\xff\xfe", b"n = " + b"9" * 100_000, None])
def test_a_manifest_that_is_malicious_or_huge(other: Fresh, lock: Path, content: bytes | None) -> None:
    """It is a line, not a crash, and takes neither time nor memory."""
    huge = b"#" * (2 << 20)
    with altered(
        other.site / "drill_provider" / "vllm_ir_provider.toml", lambda _: huge if content is None else content
    ):
        code, lines = check(other, lock)
    assert code == 1
    assert lines[0].startswith("distribution drill-provider: locked 1.0, found what does not load: ")
    assert "vllm_ir_provider.toml: the file is not readable (" in lines[0]


def test_an_uninstalled_and_an_upgraded_provider(other: Fresh, lock: Path, wheels: Path) -> None:
    """Each is said with the command that brings the locked one back, and that command's install is clean."""
    other.pip("uninstall", "--yes", "drill-provider")
    code, lines = check(other, lock)
    assert (code, lines[0].startswith("distribution drill-provider: locked 1.0, found not installed. Install")) == (
        1,
        True,
    )
    install(other, wheels, "drill_provider-1.1-*")
    code, lines = check(other, lock)
    assert (code, lines[0].startswith("distribution drill-provider: locked 1.0, found 1.1. Install it: pip")) == (
        1,
        True,
    )
    if find_spec("torch") is not None:
        assert start(other, lock) == [f"stopped|{lines[0]}", "False"]
    install(other, wheels, "drill_provider-1.0-*")
    assert check(other, lock)[0] == 0


@needs_torch
def test_a_provider_that_is_not_in_the_lock(other: Fresh, lock: Path, wheels: Path) -> None:
    """`check` finds it, and a process under the lock runs without it."""
    install(other, wheels, "vllm_ir_first_provider-*")
    code, lines = check(other, lock)
    assert code == 1
    assert lines[0].startswith("distribution vllm-ir-first-provider: locked nothing, found 0.1.0. Uninstall it: pip")
    told = "import vllm_ir\nprint([(each.name, each.failure and each.failure.kind) for each in vllm_ir.providers()])"
    done = other.run("-c", told, VLLM_IR_LOCK=str(lock))
    found = "('native', None), ('unfused', None), ('drill', None), ('first_provider', 'not in the lock')"
    assert done.stdout == f"[{found}]\n", done.stderr
    other.pip("uninstall", "--yes", "vllm-ir-first-provider")
    assert check(other, lock)[0] == 0


def test_what_is_exported_is_what_pip_locks_and_installs(
    one: Fresh, other: Fresh, lock: Path, wheels: Path, tmp_path: Path
) -> None:
    """From the lock to requirements, to a file that names wheels and their hashes, to an environment that is clean."""
    (tmp_path / "requirements.txt").write_text(
        one.run("-m", "vllm_ir", "export", "requirements", "--lock", str(lock)).stdout, encoding="utf-8"
    )
    pip = [sys.executable, "-m", "pip"]
    options = ["--quiet", "--no-deps", "--no-index", "--find-links", str(wheels)]
    done = subprocess.run(
        [*pip, "lock", *options, "-r", "requirements.txt", "-o", "pylock.toml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "unknown command" in done.stderr:
        pytest.skip("needs a pip that has `lock`")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pylock.toml").read_text(encoding="utf-8").count("sha256 = ") == 2
    found = subprocess.run(
        [*pip, "--python", other.python, "install", *options, "--force-reinstall", "-r", "pylock.toml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode and "Invalid requirement" in found.stderr:
        pytest.skip("needs a pip that installs from pylock.toml")
    assert found.returncode == 0, found.stderr
    assert check(other, lock)[0] == 0


VARIES = [(r"python3\.\d+", "python3.X"), (r"\d+ bytes", "N bytes"), (r"Traceback.*\n(?:  .*\n)*", "")]


def neutral(text: str) -> str:
    """Return an output without what differs between machines."""
    for pattern, put in VARIES:
        text = re.sub(pattern, put, text)
    return text.strip()


def test_the_session_of_the_page(
    workspace: Workspace, make_fresh: Callable[[Path], Fresh], wheels: Path, tmp_path: Path
) -> None:
    """Each command prints what docs/lock.md shows, one after the other in one environment and one folder."""
    fresh = make_fresh(tmp_path / "env")
    install(fresh, wheels, "vllm_ir-*", "vllm_ir_first_provider-*")
    page = (workspace.root / "docs" / "lock.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE) if part]
    assert len(parts) >= 6
    toml = re.search(r"```toml\n(\[op-priority\].*?)```", page, flags=re.DOTALL)
    assert toml is not None
    (tmp_path / "vllm-ir.toml").write_text(toml.group(1), encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PYTHONUNBUFFERED"] = "1"  # both streams in the order in which a terminal shows them
    variables["PATH"] = f"{fresh.folder / 'bin'}{os.pathsep}{variables['PATH']}"
    for command, _, shown in (part.partition("\n") for part in parts):
        if "python -c" in command and find_spec("torch") is None:
            continue
        line = command.replace("python3.11", fresh.site.parent.name)
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert neutral(done.stdout) == neutral(shown), command
