"""The stand-in for AITER, installed with metadata in a folder on the path; and whether the package index can be asked.

What needs the index is marked `package_index`, and what it lacks is said by one skip, here.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms import Device, Platform
from vllm_ir_provider_aiter import library
from vllm_ir_provider_aiter.symbols import READ

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
REQUIREMENT = f"amd-aiter=={READ}"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "package_index: needs the package index, to fetch AITER's wheel (40 MB)")


@dataclass(frozen=True)
class Site:
    """A folder on the path with the stand-in in it.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def package(self) -> Path:
        """The folder of the package `aiter`."""
        return self.path / "aiter"

    def metadata(self, distribution: str, version: str) -> None:
        """Write the metadata that an installer leaves."""
        folder = self.path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.2\nName: {distribution}\nVersion: {version}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    def change(self, file: str, old: str, new: str) -> None:
        """Replace what a source says."""
        path = self.package / file
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")


def forget() -> None:
    """Forget an AITER that was imported."""
    library.function.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Give a folder on the path with nothing in it."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(str(path))
    forget()
    yield Site(path)
    forget()


@pytest.fixture
def unlabelled(empty: Site) -> Site:
    """Give the stand-in without metadata: a module of unknown origin."""
    shutil.copytree(HERE / "fake_site" / "aiter", empty.package, ignore=shutil.ignore_patterns("__pycache__"))
    return empty


@pytest.fixture
def site(unlabelled: Site) -> Site:
    """Give the stand-in, installed as the version that was read."""
    unlabelled.metadata("amd-aiter", READ)
    return unlabelled


@pytest.fixture
def machine() -> Callable[..., Platform]:
    """Give a function that returns a machine with one AMD GPU, whose tensors are here those of a CPU."""

    def make(gfx: str = "gfx942") -> Platform:
        """Return the machine."""
        return Platform(name="rocm", device_type="cpu", devices=[Device(f"AMD {gfx}", gfx=gfx)])

    return make


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the wheel of the version that was read, or skip; nothing of it is installed or imported."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "1", "--dest", str(folder), REQUIREMENT]
    command = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "download", *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        pytest.skip(f"needs the package index: it did not give {REQUIREMENT} within 5 minutes")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        pytest.skip(f"needs the package index: {REQUIREMENT} cannot be had ({said[-1].strip()})")
    return next(folder.glob("*.whl"))
