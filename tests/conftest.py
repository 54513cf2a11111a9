"""The workspace as data, for the tests that look at every distribution at once.

What a single distribution promises is tested in its own folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Callable

OURS = ("vllm_ir", "_vllm_ir", "__editable__")
"""How what is ours begins in a folder of installed packages."""

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Distribution:
    """One folder with a `pyproject.toml` below the root."""

    folder: Path
    pyproject: dict[str, Any]

    @property
    def project(self) -> dict[str, Any]:
        """Return the `[project]` table."""
        table: dict[str, Any] = self.pyproject["project"]
        return table

    @property
    def packages(self) -> list[Path]:
        """Return the import packages it ships."""
        return sorted(path.parent for path in (self.folder / "src").glob("*/__init__.py"))

    @property
    def sources(self) -> list[Path]:
        """Return every Python file it ships."""
        return sorted((self.folder / "src").rglob("*.py"))


@dataclass(frozen=True, slots=True)
class Workspace:
    """The repository: its root, the files that belong to it and its distributions."""

    root: Path
    files: tuple[Path, ...]
    distributions: tuple[Distribution, ...]

    def named(self, pattern: str) -> list[Path]:
        """Return the files whose path below the root matches a glob."""
        return [path for path in self.files if path.relative_to(self.root).match(pattern)]


def read_workspace(root: Path) -> Workspace:
    """Read the repository at `root`: what git tracks, and what it would track."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    files = tuple(sorted(path for name in listed.split("\0") if name and (path := root / name).is_file()))
    distributions = tuple(
        Distribution(path.parent, tomllib.loads(path.read_text(encoding="utf-8")))
        for path in files
        if path.name == "pyproject.toml" and path.parent != root
    )
    return Workspace(root, files, distributions)


@pytest.fixture(scope="session")
def workspace() -> Workspace:
    """Give the repository these tests belong to."""
    return read_workspace(ROOT)


@dataclass(frozen=True, slots=True)
class Fresh:
    """An environment of its own."""

    folder: Path

    @property
    def python(self) -> str:
        """Return its interpreter."""
        return str(self.folder / "bin" / "python")

    @property
    def site(self) -> Path:
        """Return its folder of installed packages."""
        (found,) = self.folder.glob("lib/python3.*/site-packages")
        return found

    def run(self, *arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run its interpreter, in a folder without settings and without this process's path."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            [self.python, *arguments],
            env={**kept, **variables}, cwd=cwd or self.folder,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def pip(self, *arguments: str) -> None:
        """Run this process's pip on it."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def make_fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Fresh]:
    """Give what makes environments with what this one has, less everything of ours.

    torch and its like are lent by links, since a second copy costs minutes.
    """
    lent = tmp_path_factory.mktemp("lent")
    folders = dict.fromkeys([*sysconfig.get_paths().values(), *(path for path in sys.path if "site-packages" in path)])
    for folder in map(Path, folders):
        for entry in folder.iterdir() if folder.name == "site-packages" else ():
            if not entry.name.startswith(OURS) and not (lent / entry.name).exists():
                (lent / entry.name).symlink_to(entry)

    def make(folder: Path) -> Fresh:
        """Make one."""
        venv.create(folder, symlinks=True)
        made = Fresh(folder)
        (made.site / "lent.pth").write_text(f"{lent}\n", encoding="utf-8")
        return made

    return make
