"""The workspace as data, for the tests that look at every distribution at once.

What a single distribution promises is tested in its own folder.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
