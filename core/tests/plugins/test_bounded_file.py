"""A file of somebody else's: plain and small, or an error at once."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from vllm_ir.plugins.bounded_file import check_size, read_bounded

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_of_just_the_limit_is_read(tmp_path: Path) -> None:
    """One byte more is not."""
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bounded(str(file), 5) == b"12345"
    with pytest.raises(OSError, match="it holds more than 4 bytes") as caught:
        read_bounded(str(file), 4)
    assert caught.value.errno == errno.EFBIG
    assert check_size(b"12345", 5, "file") == b"12345"


def test_a_huge_file_takes_no_memory(tmp_path: Path) -> None:
    """A terabyte of nothing is refused after the limit."""
    with (tmp_path / "file").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="it holds more than 100 bytes"):
        read_bounded(str(tmp_path / "file"), 100)


@pytest.mark.parametrize("path", ["pipe", "folder", "/dev/zero", "/dev/null"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, path: str) -> None:
    """A pipe would wait for a writer, a device never end; none of them leaves a descriptor open."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208
    with pytest.raises(OSError, match="it is no plain file"):
        read_bounded(str(tmp_path / path), 100)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208
    assert after == before
