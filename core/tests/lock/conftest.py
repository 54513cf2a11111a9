"""Distributions as an installer leaves them, RECORD with hashes and sizes included, in a folder that is on the path.

The core is among them: its metadata lie in that folder and its package is a link to where it is imported from, so that
it has a digest although the tests run it from its sources.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import vllm_ir
from vllm_ir.environment import Environment
from vllm_ir.lock.files import Depth
from vllm_ir.lock.installed import Inspector
from vllm_ir.lock.taking import Taken, take
from vllm_ir.platforms import Platform
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.static import survey
from vllm_ir.preferences import Preferences
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CPU = Platform(name="cpu", device_type="cpu")

MANIFEST = """
schema = 1
provider-api = "1"
summary = "A provider made for a test."
[providers.{provider}.platforms]
cpu = {{}}
cuda = {{ minimum = "8.0" }}
[providers.{provider}.ops.rms_norm]
[providers.{provider}.default.eager]
rms_norm = ["cpu", "cuda"]
"""

HOOKS = """
from torch import Tensor
from vllm_ir import hookimpl, implements

@implements("rms_norm", provider="{provider}", supported={supported})
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return x + 1

@hookimpl
def vllm_ir_implementations(platform):
    return [rms_norm]
"""

ELSEWHERE = tuple(each.name for each in scan() if each.name != "vllm-ir" and each.providers)
"""Distributions with providers that are installed here whatever a test makes."""


def row(path: Path, name: str) -> str:
    """Return the line of RECORD for a file."""
    content = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


@dataclass
class House:
    """A folder of installed distributions.

    Args:
        path: the folder; it is on the path.
        packages: the top-level packages that were written into it.
    """

    path: Path
    packages: list[str] = field(default_factory=list)

    def install_core(self) -> None:
        """Write the core's metadata, and a link to its package."""
        package = Path(vllm_ir.__file__).parent
        (self.path / "vllm_ir").symlink_to(package, target_is_directory=True)
        files = [
            str(Path("vllm_ir", file.relative_to(package))).replace(os.sep, "/")
            for file in sorted(package.rglob("*"))
            if file.is_file() and "__pycache__" not in file.parts
        ]
        points = "[vllm_ir.providers]\nnative = vllm_ir.plugins.native\n"
        self.metadata("vllm-ir", "0.1.0", points, files)

    def install(
        self,
        name: str = "dist-fast",
        version: str = "1.0",
        *,
        provider: str = "fast",
        supported: bool = True,
        files: Mapping[str, bytes] | None = None,
        more: Sequence[str] = (),
    ) -> Path:
        """Write a distribution with one provider of rms_norm and return its package.

        Args:
            name: of the distribution.
            version: its version.
            provider: its provider.
            supported: whether the provider says at run time that it can run here.
            files: further files of the package.
            more: further lines of RECORD.
        """
        package = self.path / name.replace("-", "_")
        package.mkdir()
        self.packages.append(package.name)
        content = {
            "__init__.py": b"",
            "hooks.py": HOOKS.format(provider=provider, supported=supported).encode(),
            "vllm_ir_provider.toml": MANIFEST.format(provider=provider).encode(),
            **(files or {}),
        }
        for file, text in content.items():
            (package / file).write_bytes(text)
        points = f"[vllm_ir.providers]\n{provider} = {package.name}.hooks\n"
        self.metadata(name, version, points, [f"{package.name}/{file}" for file in content], more)
        return package

    def metadata(
        self, name: str, version: str, entry_points: str, files: Sequence[str], more: Sequence[str] = ()
    ) -> None:
        """Write the folder of metadata, RECORD last."""
        folder = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (folder / "INSTALLER").write_text("by hand\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(entry_points, encoding="utf-8")
        names = [*files, *(f"{folder.name}/{each}" for each in ("METADATA", "INSTALLER", "entry_points.txt"))]
        lines = [*(row(self.path / each, each) for each in names), *more, f"{folder.name}/RECORD,,"]
        (folder / "RECORD").write_text("\n".join(lines) + "\n", encoding="utf-8")
        importlib.invalidate_caches()

    def uninstall(self, name: str = "dist-fast") -> None:
        """Remove a distribution."""
        shutil.rmtree(self.path / name.replace("-", "_"))
        for folder in self.path.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(folder)
        importlib.invalidate_caches()

    def record(self, name: str = "dist-fast") -> Path:
        """Return the RECORD of a distribution."""
        (found,) = self.path.glob(f"{name.replace('-', '_')}-*.dist-info/RECORD")
        return found

    def take(
        self, *platforms: Platform, depth: Depth = Depth.BYTES, variables: Mapping[str, str] | None = None
    ) -> Taken:
        """Return this machine as a lock would hold it, less what is installed elsewhere."""
        denied = ",".join(ELSEWHERE)
        environment = Environment.read({"VLLM_IR_PROVIDERS_DISABLED": denied, **(variables or {})})
        preferences = Preferences(environment, Settings())
        surveys = [survey(environment, each, policy=preferences.policy) for each in platforms or (CPU,)]
        return take(surveys, preferences, Inspector(depth))


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """Give a folder of installed distributions with the core in it, first on the path."""
    folder = tmp_path / "house"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    made = House(folder)
    made.install_core()
    yield made
    for name in list(sys.modules):
        if name.partition(".")[0] in made.packages:
            del sys.modules[name]
    importlib.invalidate_caches()
