"""Files held against RECORD: every byte, or a glance that reads only what was touched since."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest
from vllm_ir.lock.files import Depth, check_files, short, strangers
from vllm_ir.lock.record import Entry, Record

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = {"pack/__init__.py": b"", "pack/kernels.so": b"\x7fELF" + bytes(range(256)) * 40}
DIGEST = hashlib.sha256(CONTENT["pack/kernels.so"]).hexdigest()
SIZE = len(CONTENT["pack/kernels.so"])


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Write the files, long ago, and return what RECORD says of them."""
    entries = []
    for name, content in CONTENT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(10**9, 10**9))
        entries.append(Entry(name, "sha256", hashlib.sha256(content).hexdigest(), len(content)))
    return Record(tuple(entries))


INSTALLED = 2 * 10**9
"""When RECORD was written."""


@pytest.mark.parametrize("depth", Depth)
def test_what_is_as_installed(tmp_path: Path, record: Record, depth: Depth) -> None:
    """There is nothing to say."""
    assert list(check_files(str(tmp_path), record, depth, INSTALLED)) == []


@pytest.mark.parametrize("depth", Depth)
def test_one_changed_byte_is_found_and_the_file_named(tmp_path: Path, record: Record, depth: Depth) -> None:
    """The size is the same; an edit makes a file newer than RECORD, so that a glance reads it."""
    changed = bytearray(CONTENT["pack/kernels.so"])
    changed[5000] ^= 1
    (tmp_path / "pack/kernels.so").write_bytes(changed)
    ((name, locked, found),) = check_files(str(tmp_path), record, depth, INSTALLED)
    assert (name, locked) == ("pack/kernels.so", short("sha256", DIGEST))
    assert found == short("sha256", hashlib.sha256(changed).hexdigest())


def test_a_change_that_hides_its_time_is_left_to_a_close_look(tmp_path: Path, record: Record) -> None:
    """A glance opens no file that looks as it was left; that is what makes it fast, and its limit."""
    path = tmp_path / "pack/kernels.so"
    path.write_bytes(CONTENT["pack/kernels.so"][::-1])
    os.utime(path, ns=(10**9, 10**9))
    assert list(check_files(str(tmp_path), record, Depth.GLANCE, INSTALLED)) == []
    assert [name for name, _, _ in check_files(str(tmp_path), record, Depth.BYTES, INSTALLED)] == ["pack/kernels.so"]


def test_a_glance_that_does_not_know_when_reads_everything(tmp_path: Path, record: Record) -> None:
    """Metadata in an archive have no time."""
    path = tmp_path / "pack/kernels.so"
    path.write_bytes(CONTENT["pack/kernels.so"][::-1])
    os.utime(path, ns=(10**9, 10**9))
    assert len(list(check_files(str(tmp_path), record, Depth.GLANCE, None))) == 1


@pytest.mark.parametrize("depth", Depth)
def test_a_touched_file_with_the_same_bytes_is_no_difference(tmp_path: Path, record: Record, depth: Depth) -> None:
    """A copy of an environment gives every file a new time."""
    os.utime(tmp_path / "pack/kernels.so")
    assert list(check_files(str(tmp_path), record, depth, INSTALLED)) == []


@pytest.mark.parametrize("depth", Depth)
def test_a_truncated_library_is_found_without_reading_it(tmp_path: Path, record: Record, depth: Depth) -> None:
    """Its size tells, whatever its time says."""
    path = tmp_path / "pack/kernels.so"
    path.write_bytes(CONTENT["pack/kernels.so"][:100])
    os.utime(path, ns=(10**9, 10**9))
    read: list[int] = []
    faults = list(check_files(str(tmp_path), record, depth, INSTALLED, read.append))
    assert faults == [("pack/kernels.so", f"{SIZE} bytes", "100 bytes")]
    assert sum(read) == 0


@pytest.mark.parametrize("depth", Depth)
def test_what_is_no_file_is_said(tmp_path: Path, record: Record, depth: Depth) -> None:
    """A missing file, a folder, a pipe that would wait for ever, a link to nothing."""
    path = tmp_path / "pack/kernels.so"
    path.unlink()
    assert [found for _, _, found in check_files(str(tmp_path), record, depth, INSTALLED)] == ["no such file"]
    path.symlink_to(tmp_path / "gone")
    assert [found for _, _, found in check_files(str(tmp_path), record, depth, INSTALLED)] == ["no such file"]
    path.unlink()
    os.mkfifo(path)
    (fault,) = check_files(str(tmp_path), record, depth, INSTALLED)
    assert fault[2] == "a file that cannot be read (it is no plain file)"
    path.unlink()
    path.mkdir()
    (fault,) = check_files(str(tmp_path), record, depth, INSTALLED)
    assert fault[2].startswith("a file that cannot be read (")


def test_progress_is_told_in_bytes(tmp_path: Path, record: Record) -> None:
    """All of them, once."""
    read: list[int] = []
    assert list(check_files(str(tmp_path), record, Depth.BYTES, INSTALLED, read.append)) == []
    assert sum(read) == SIZE


def test_files_that_nobody_recorded_are_named(tmp_path: Path, record: Record) -> None:
    """Python imports a planted module; bytecode is made anew everywhere; a linked folder is not walked into."""
    (tmp_path / "pack/planted.so").write_bytes(b"")
    (tmp_path / "pack/__pycache__").mkdir()
    (tmp_path / "pack/__pycache__/x.py").write_bytes(b"")
    (tmp_path / "pack/old.pyc").write_bytes(b"")
    (tmp_path / "pack/loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "pack/below").mkdir()
    (tmp_path / "pack/below/more.py").write_bytes(b"")
    assert list(strangers(str(tmp_path), record, "pack")) == ["pack/below/more.py", "pack/loop", "pack/planted.so"]
