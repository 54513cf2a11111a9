"""The walk over installed distributions: ours are found, copies are told apart, and strangers are not parsed."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.plugins.distributions import (
    COMMANDS,
    PROVIDERS,
    EntryPoint,
    Installed,
    normalise,
    parse_entry_points,
    scan,
)
from vllm_ir.plugins.records import ShadowedCopy
from vllm_ir.plugins.walk import Folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.tests.plugins.conftest import Site

LINES = "[vllm_ir.providers]\nfake = a.b\n\n[vllm_ir.commands]\ngo = a.c:main\n"


def find(name: str) -> Installed:
    """Return the one distribution of that name on the path of this process."""
    (found,) = [each for each in scan() if normalise(each.name) == normalise(name)]
    return found


def test_both_groups_are_read_in_one_walk(site: Site) -> None:
    """Name, version, place and both kinds of entry points."""
    site.metadata("synthetic-one", "2.5", LINES)
    found = find("synthetic-one")
    assert (found.name, found.version, found.location) == ("synthetic-one", "2.5", str(site.path.resolve()))
    assert found.providers == (EntryPoint("fake", "a.b", None),)
    assert found.commands == (EntryPoint("go", "a.c", "main"),)
    assert found.providers[0].package == "a"
    assert found.shadowed == ()


def test_a_stranger_is_neither_listed_nor_parsed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """METADATA of a distribution without our groups is never opened."""
    site.metadata("synthetic-stranger", "1.0", "[console_scripts]\na = b:c\n")
    site.metadata("synthetic-ours", "1.0", LINES)
    opened: list[str] = []
    read = Folder.read

    def spy(self: Folder, file: str) -> str:
        """Note what is opened."""
        opened.append(f"{self.key}/{file}")
        return read(self, file)

    monkeypatch.setattr(Folder, "read", spy)
    assert [each.name for each in scan([str(site.path)])] == ["synthetic-ours"]
    assert "synthetic-stranger/METADATA" not in opened
    assert "synthetic-ours/METADATA" in opened


def test_the_first_copy_wins_and_the_second_is_told(make_site: Callable[[str], Site]) -> None:
    """A canary environment over system packages: the first on the path is imported, the other is shown."""
    system, canary = make_site("system"), make_site("canary")
    system.metadata("synthetic-twice", "1.0", LINES)
    canary.metadata("Synthetic.Twice", "2.0", LINES.replace("a.b", "new.b"))
    found = find("synthetic-twice")
    assert (found.version, found.providers[0].module) == ("2.0", "new.b")
    assert found.shadowed == (ShadowedCopy("1.0", str(system.path.resolve())),)


def test_a_first_copy_without_our_entry_points_still_wins(make_site: Callable[[str], Site]) -> None:
    """What Python imports is the first copy; the entry points of the hidden one lead into the wrong version."""
    system, canary = make_site("system"), make_site("canary")
    system.metadata("synthetic-twice", "2.0", LINES)
    canary.metadata("synthetic-twice", "1.0")
    assert [each for each in scan() if each.name == "synthetic-twice"] == []


def test_one_folder_twice_on_the_path_is_one_copy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is listed twice, also through a link, hides nothing."""
    site.metadata("synthetic-one", "1.0", LINES)
    link = site.path.parent / "link"
    link.symlink_to(site.path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site.path), str(link)])
    assert find("synthetic-one").shadowed == ()


def test_two_versions_in_one_folder_are_told(site: Site) -> None:
    """A broken upgrade leaves both; one of them wins, the other is shown."""
    site.metadata("synthetic-one", "1.0", LINES)
    site.metadata("synthetic-one", "1.1", LINES)
    found = find("synthetic-one")
    assert {found.version, found.shadowed[0].version} == {"1.0", "1.1"}


def test_what_an_installer_left_behind_is_no_distribution(site: Site) -> None:
    """Pip renames a distribution with a tilde while it removes it."""
    folder = site.metadata("synthetic-one", "1.0", LINES)
    folder.rename(folder.with_name("~ynthetic_one-1.0.dist-info"))
    assert [each.name for each in scan([str(site.path)])] == []


@pytest.mark.parametrize("metadata", [None, "", "Version: 3.0\n", "Name: synthetic-one\n"])
def test_metadata_that_say_little_are_no_reason_to_fail(site: Site, metadata: str | None) -> None:
    """The folder's name stands in for a missing name, and words for a missing version."""
    folder = site.metadata("synthetic-one", "1.0", LINES)
    (folder / "METADATA").unlink()
    if metadata is not None:
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
    found = find("synthetic-one")
    assert found.version == {"Version: 3.0\n": "3.0", "Name: synthetic-one\n": "unknown"}.get(
        metadata or "", "no metadata"
    )
    assert found.providers


def test_entry_points_that_are_no_text_are_none_of_ours(site: Site) -> None:
    """A stranger's broken file does not break the walk."""
    folder = site.metadata("synthetic-one", "1.0", LINES)
    (folder / "entry_points.txt").write_bytes(b"\xff\xfe[vllm_ir.providers]\nx = y\n")
    assert scan([str(site.path)]) == ()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a = b", EntryPoint("a", "b", None)),
        ("a=b.c:d.e", EntryPoint("a", "b.c", "d.e")),
        ("a = b : c [extra]", EntryPoint("a", "b", "c")),
        ("a = not a module!", EntryPoint("a", "not a module!", None)),
        ("a =", EntryPoint("a", "", None)),
        ("a", EntryPoint("a", "", None)),
    ],
)
def test_a_line_is_read_whatever_it_is(line: str, wanted: EntryPoint) -> None:
    """A value that no installer would write becomes a module that cannot exist, with a record of its own later."""
    text = f"# comment\n[other]\nx = y\n[{PROVIDERS}]\n; comment\n{line}\n[{COMMANDS}]\nz = y\n"
    assert parse_entry_points(text, PROVIDERS) == (wanted,)


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    """Files of strangers may hold anything."""
    for entry in parse_entry_points(f"[{PROVIDERS}]\n{text}", PROVIDERS):
        assert isinstance(entry.module, str)


def test_the_order_of_a_folder_is_by_name_whatever_it_lists_first(
    make_site: Callable[[str], Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders of the path stay in their order; within one, what is shown is the same on every machine."""
    later, first = make_site("later"), make_site("first")
    for name in ("synthetic-b", "Synthetic_A", "synthetic-c"):
        first.metadata(name, "1.0", LINES)
    later.metadata("synthetic-0", "1.0", LINES)
    wanted = ["Synthetic_A", "synthetic-b", "synthetic-c", "synthetic-0"]
    path, listed = [str(first.path), str(later.path)], os.listdir
    for turned in (False, True):
        monkeypatch.setattr(os, "listdir", lambda root, turned=turned: sorted(listed(root), reverse=turned))
        assert [each.name for each in scan(path)] == wanted
