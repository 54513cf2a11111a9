"""What surrounds a process: versions, files and cache folders, and nothing that cannot be read ends it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from vllm_ir.diagnosis import surroundings


def test_versions_come_from_metadata() -> None:
    """Of the core and what it stands on, and of what was asked for; what is not installed is not there."""
    found = surroundings.read_versions(["pytest", "absent-in-any-case"])
    assert {"vllm-ir", "torch", "python", "system", "pluggy", "pytest"} <= set(found)
    assert found["pytest"] == pytest.__version__
    assert "absent-in-any-case" not in found


def test_a_file_is_told_with_its_digest(tmp_path: Path) -> None:
    """So that two machines can be compared by what they pasted."""
    file = tmp_path / "x.lock"
    file.write_bytes(b"content")
    file.chmod(0o640)
    told = surroundings.read_file("lock", file, "VLLM_IR_LOCK")
    assert told.sha256 == hashlib.sha256(b"content").hexdigest()
    assert told.mode is not None
    assert told.mode.startswith("-rw-r----- ")
    assert told.problem is None


def test_a_file_that_is_none_is_told_so(tmp_path: Path) -> None:
    """Missing, a folder, or of a size that no such file has: a problem, or no digest, and no exception."""
    assert surroundings.read_file("lock", tmp_path / "no", "V").problem == (
        "It cannot be read: No such file or directory."
    )
    assert surroundings.read_file("lock", tmp_path, "V").problem == "It cannot be read: it is no plain file."
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    huge = surroundings.read_file("lock", tmp_path / "huge", "V")
    assert (huge.sha256, huge.problem) == (None, None)


def test_a_cache_is_told_with_its_folders(tmp_path: Path) -> None:
    """How full each is, and that it is right."""
    cache = tmp_path / "cache"
    (cache / "kernels").mkdir(parents=True, mode=0o700)
    cache.chmod(0o700)
    (cache / "kernels" / "a").write_bytes(b"123")
    (cache / "b").write_bytes(b"4")
    whole, below = surroundings.read_caches(cache)
    assert (whole.path, whole.files, whole.size, whole.problem) == (str(cache), 2, 4, None)
    assert (below.path, below.files, below.size, below.problem) == (str(cache / "kernels"), 1, 3, None)
    assert whole.free


def test_a_cache_that_is_not_there_yet_is_no_problem(tmp_path: Path) -> None:
    """It is made when it is needed."""
    (told,) = surroundings.read_caches(tmp_path / "a" / "b")
    assert (told.mode, told.problem) == (None, None)
    (tmp_path / "file").touch()
    (told,) = surroundings.read_caches(tmp_path / "file" / "b")
    assert told.problem == f"It cannot be made (Not a directory): {tmp_path / 'file'} is no folder."


@pytest.mark.parametrize("below", ["nope", "nope/deeper"])
def test_a_cache_in_a_view_of_the_kernel_can_never_be_made(below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root is told that it may write there, and no folder ever comes to be."""
    if not Path("/proc/self/mounts").exists():
        pytest.skip("no /proc here that tells what is mounted")
    monkeypatch.setattr(os, "access", lambda *_: True)
    (told,) = surroundings.read_caches(Path("/proc") / below)
    assert told.problem == (
        "It cannot be made (No such file or directory): /proc is a view of the kernel (proc), which keeps no files."
    )


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_cache_that_others_can_write_is_a_problem(mode: int, tmp_path: Path) -> None:
    """What it holds is run as code."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    (told,) = surroundings.read_caches(cache)
    assert told.problem == f"Others can write it, and what it holds is run as code: chmod 700 {cache}."


def test_a_link_and_a_file_are_no_cache(tmp_path: Path) -> None:
    """Below it, too."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    (cache / "link").symlink_to(tmp_path)
    _, link = surroundings.read_caches(cache)
    assert link.problem == "It is a symbolic link; a cache is used only where it is a folder of its own."
    (tmp_path / "file").touch()
    (file,) = surroundings.read_caches(tmp_path / "file")
    assert file.problem == "It is no folder."


def test_a_folder_of_somebody_else_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns it can change what it holds."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    (told,) = surroundings.read_caches(tmp_path)
    assert told.problem == f"It belongs to user {os.getuid()}, and this is user {os.getuid() + 1}."


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first kernel cannot be kept."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(surroundings, "_free", lambda _: 5 * 2**20)
    (told,) = surroundings.read_caches(tmp_path)
    assert told.problem == "Its disk is full: 5 MB are left."


def test_a_folder_without_permission_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made there is lost with the process; root, who may write anywhere, is kept out by hand."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o500)
    monkeypatch.setattr(os, "access", lambda *_: False)
    (told,) = surroundings.read_caches(cache)
    assert told.problem == "It is not writable; what is made is kept for one process and then thrown away."
    (told,) = surroundings.read_caches(cache / "below")
    assert told.problem == f"It cannot be made (No such file or directory): {cache} is not writable."


def test_counting_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of a million files costs a report no minute."""
    monkeypatch.setattr(surroundings, "_MANY", 3)
    tmp_path.chmod(0o700)
    for number in range(5):
        (tmp_path / str(number)).touch()
    (told,) = surroundings.read_caches(tmp_path)
    assert told.files == 3
