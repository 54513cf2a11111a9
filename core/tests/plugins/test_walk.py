"""The walk over the path sees what the standard library sees, and asks it only where it has to."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.plugins import walk as walk_module
from vllm_ir.plugins.walk import Folder, Foreign, Metadata, normalise, walk

if TYPE_CHECKING:
    from pathlib import Path

    from core.tests.plugins.conftest import Site


def told(metadata: Metadata) -> tuple[str, str, str | None, str | None, str]:
    """Return everything that metadata tell."""
    return (
        metadata.key,
        metadata.location,
        metadata.fact("Name"),
        metadata.fact("Version"),
        metadata.read("entry_points.txt"),
    )


def test_folders_tell_what_the_standard_library_tells() -> None:
    """Everything that is installed here, in the same order, with the same names, versions and entry points."""
    library = [told(Foreign(each)) for each in importlib.metadata.distributions()]
    assert [told(each) for each in walk()] == library
    assert len(library) > 5


def test_the_standard_library_is_not_imported_for_folders() -> None:
    """A fresh interpreter that has walked its path has not paid for it."""
    code = (
        "import sys; from vllm_ir.plugins.walk import walk\n"
        "print(len(list(walk())) > 0, 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_an_archive_on_the_path_is_looked_into(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python imports from it, so its distributions count."""
    archive = site.path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("synthetic_packed-3.1.dist-info/METADATA", "Name: synthetic-packed\nVersion: 3.1\n")
        file.writestr("synthetic_packed-3.1.dist-info/entry_points.txt", "[group]\na = b\n")
    monkeypatch.syspath_prepend(str(archive))
    (found,) = [each for each in walk() if each.key == "synthetic-packed"]
    assert (found.fact("Version"), found.read("entry_points.txt")) == ("3.1", "[group]\na = b\n")
    assert found.location == str(archive.resolve())


def test_a_finder_with_distributions_of_its_own_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen applications and some build systems install one; what it says may be incomplete."""

    class Made(importlib.metadata.Distribution):
        """A distribution that is nowhere on disk."""

        def read_text(self, filename: str) -> str | None:
            """Return the metadata, or fail as a foreign archive may."""
            if filename == "entry_points.txt":
                raise OSError(filename)
            return "Name: synthetic-made\n" if filename == "METADATA" else None

        def locate_file(self, _path: object) -> Made:  # type: ignore[override]
            """Return no place."""
            return self

        def __str__(self) -> str:
            return "/nowhere"

    class Finder:
        """A finder that knows it."""

        def find_spec(self, *_: object) -> None:
            """Find no module."""

        def find_distributions(self, *_: object) -> list[Made]:
            """Find the one distribution."""
            return [Made()]

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    (found,) = [each for each in walk() if each.key == "synthetic-made"]
    assert isinstance(found, Foreign)
    assert told(found) == ("synthetic-made", "/nowhere", "synthetic-made", None, "")


def test_a_path_with_nothing_behind_it_is_skipped(site: Site) -> None:
    """Paths name folders that are gone, and folders that hold anything."""
    site.write("notes.dist-info.txt", "")
    site.write("~alf-1.0.dist-info/METADATA", "Name: half\n")
    site.metadata("synthetic-one")
    assert [each.key for each in walk([str(site.path / "gone"), str(site.path)])] == ["synthetic-one"]


def test_headers_end_with_the_first_empty_line(site: Site) -> None:
    """A description may hold lines that look like headers."""
    folder = site.metadata("synthetic-one", "1.0")
    (folder / "METADATA").write_text("Name: a\n\nVersion: 9\n", encoding="utf-8")
    assert Folder(str(site.path), folder.name).fact("Version") is None
    (folder / "METADATA").write_text("NAME: a\nversion:  2 \nVersion: 9\n", encoding="utf-8")
    assert Folder(str(site.path), folder.name).fact("Version") == "2"


def test_the_current_folder_counts_where_the_path_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty entry stands for it."""
    site.metadata("synthetic-one")
    monkeypatch.chdir(site.path)
    (found,) = walk([""])
    assert found.location == str(site.path.resolve())


@given(st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True))
def test_names_are_compared_as_installers_do(name: str) -> None:
    """Normalising as pip's own library does, and twice is once."""
    utils = pytest.importorskip("packaging.utils")
    assert normalise(name) == utils.canonicalize_name(name) == normalise(normalise(name))


def test_metadata_that_somebody_else_wrote_obey_nobody(tmp_path: Path) -> None:
    """No header holds what a terminal obeys; a pipe does not block and a huge file is not read; both are as none."""
    folder = tmp_path / "synthetic_odd-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_bytes(b"Name: synthetic-\x1b[2Jodd\r\nVersion: 1.0\x07\xc2\x9b\r\n\r\nText\r\n")
    os.mkfifo(folder / "entry_points.txt")
    with (folder / "RECORD").open("wb") as file:
        file.truncate(walk_module.LIMIT + 1)
    ours = Folder(str(tmp_path), folder.name)
    theirs = Foreign(importlib.metadata.Distribution.at(folder))
    for each in (ours, theirs):
        assert (each.fact("Name"), each.fact("Version")) == ("synthetic-\ufffd[2Jodd", "1.0\ufffd\ufffd")
    assert (ours.read("entry_points.txt"), ours.read("RECORD")) == ("", "")
    assert ours.read("METADATA") == theirs.read("METADATA")
