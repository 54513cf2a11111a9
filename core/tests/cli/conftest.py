"""Distributions made of text, and the command line run as its user runs it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import vllm_ir
from vllm_ir.plugins.distributions import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MANIFEST = """
schema = 1
provider-api = "1"
summary = "A provider made for a test."
[providers.{provider}.platforms]
{platform} = {{}}
[providers.{provider}.ops.rms_norm]
"""

DEFAULT = """
[providers.{provider}.default.eager]
rms_norm = ["{platform}"]
"""

HOOKS = """
from torch import Tensor
from vllm_ir import hookimpl, implements

@implements("rms_norm", provider="{provider}")
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return x.clone()

@hookimpl
def vllm_ir_implementations(platform):
    return [rms_norm]
"""


EACH = """
import contextlib, io, json, sys
from vllm_ir.cli.main import main
outcomes = []
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(line)
        except SystemExit as stop:
            code = stop.code
    outcomes.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(outcomes))
"""


ELSEWHERE = ",".join(each.name for each in scan() if each.name != "vllm-ir" and each.providers)
"""Distributions with providers that are installed here whatever a test makes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command line did."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Site:
    """A folder that stands for site-packages, and what can be put into it."""

    folder: Path

    def add(self, name: str, entry_points: Mapping[str, str], files: Mapping[str, str]) -> None:
        """Write what an installer leaves of a distribution.

        Args:
            name: of the distribution.
            entry_points: group to one line.
            files: path below the folder to text.
        """
        metadata = self.folder / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        sections = [f"[{group}]\n{line}\n" for group, line in entry_points.items()]
        (metadata / "entry_points.txt").write_text("\n".join(sections), encoding="utf-8")
        for path, text in files.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self.record(metadata, [*files, f"{metadata.name}/entry_points.txt"])

    def record(self, metadata: Path, names: Sequence[str]) -> None:
        """Write the RECORD of a distribution, with the hash and the size of each of its files."""
        lines = []
        for name in names:
            content = (self.folder / name).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
        (metadata / "RECORD").write_text("".join([*lines, f"{metadata.name}/RECORD,,\n"]), encoding="utf-8")

    def add_core(self) -> None:
        """Write the core's own metadata, and a link to its package, so that it is an installed one with a digest."""
        package = Path(vllm_ir.__file__).parent
        (self.folder / "vllm_ir").symlink_to(package, target_is_directory=True)
        self.add("vllm-ir", {"vllm_ir.providers": "native = vllm_ir.plugins.native"}, {})
        files = [each for each in sorted(package.rglob("*")) if each.is_file() and "__pycache__" not in each.parts]
        metadata = self.folder / "vllm_ir-1.0.dist-info"
        self.record(
            metadata,
            [f"vllm_ir/{each.relative_to(package).as_posix()}" for each in files]
            + [f"{metadata.name}/entry_points.txt"],
        )

    def add_provider(self, provider: str, *, platform: str = "cpu", hooks: str = HOOKS, default: bool = False) -> None:
        """Write a distribution `dist-<provider>` that brings one provider of `rms_norm`."""
        package = f"pack_{provider}"
        template = MANIFEST + DEFAULT if default else MANIFEST
        manifest = template.format(provider=provider, platform=platform)
        self.add(
            f"dist-{provider}",
            {"vllm_ir.providers": f"{provider} = {package}.hooks"},
            {
                f"{package}/__init__.py": "",
                f"{package}/hooks.py": hooks.format(provider=provider),
                f"{package}/vllm_ir_provider.toml": manifest,
            },
        )

    def add_verb(self, verb: str, distribution: str, body: str) -> None:
        """Write a distribution that brings one verb, whose module is `body`."""
        package = distribution.replace("-", "_")
        self.add(distribution, {"vllm_ir.commands": f"{verb} = {package}:main"}, {f"{package}/__init__.py": body})

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `vllm-ir` with this folder on the path, in a fresh process and a folder without settings."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "80", **variables}
        return subprocess.run(
            [sys.executable, "-m", "vllm_ir", *arguments],
            env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    def run_alone(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `vllm-ir` as `run` does, without the providers that are installed elsewhere."""
        return self.run(*arguments, **{"VLLM_IR_PROVIDERS_DISABLED": ELSEWHERE, **variables})

    def run_each(self, lines: Sequence[Sequence[str]], **variables: str) -> list[Outcome]:
        """Run `vllm-ir` once for each command line, all in one fresh process, since importing torch takes seconds."""
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "80", **variables}
        done = subprocess.run(
            [sys.executable, "-c", EACH, json.dumps([list(line) for line in lines])],
            env=environment, cwd=self.folder, capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        return [Outcome(*each) for each in json.loads(done.stdout)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Give an empty folder for distributions."""
    return Site(tmp_path)


@pytest.fixture(scope="session")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Site]:
    """Give what makes empty folders for distributions, for what is asked once for several tests."""
    return lambda: Site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def locked(site: Site) -> Site:
    """Give a folder with the core and one provider, all with a digest, and a lock of them."""
    site.add_core()
    site.add_provider("fast", default=True)
    done = site.run_alone("lock")
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Give a way to set the terminal's width."""

    def set_columns(number: int) -> None:
        monkeypatch.setenv("COLUMNS", str(number))

    return set_columns
