"""Whether the files of a distribution are what its RECORD says: every byte of them, or as far as a glance tells.

The glance opens no file that looks as its installer left it: it is there, has its size, and is not newer than RECORD.
One that is newer is read, so that an edit is seen without reading everything; one whose time was set back is not.
Names that RECORD does not have are looked for either way: Python may prefer such a file to the one that was locked.
"""

from __future__ import annotations

import enum
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Final

from vllm_ir.lock.lock_file import reason_of
from vllm_ir.plugins.bounded_file import open_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.lock.record import Entry, Record

_CHUNK: Final = 1 << 20
_SHORT: Final = 16
"""Digits of a digest that are shown."""
MISSING: Final = "no such file"

Fault = tuple[str, str, str]
"""Name of a file, what it was when it was installed, and what it is."""


class Depth(enum.Enum):
    """How closely files are looked at."""

    GLANCE = "glance"
    BYTES = "bytes"


def check_files(
    root: str, record: Record, depth: Depth, installed: int | None, advance: Callable[[int], None] | None = None
) -> Iterator[Fault]:
    """Yield what is not as RECORD says, in the order of the names.

    Args:
        root: the folder that the names are below.
        record: what RECORD says.
        depth: how closely to look.
        installed: time of RECORD's last change in nanoseconds; None where it is not known.
        advance: is told how many bytes have been dealt with, each time some have.
    """
    for entry in record.entries:
        path = os.path.join(root, *entry.name.split("/"))  # noqa: PTH118 - one a file, at every start
        try:
            fault = _check(path, entry, None if depth is Depth.BYTES else installed or 0, advance)
        except FileNotFoundError:
            fault = (short(entry.algorithm, entry.digest), MISSING)
        except OSError as error:
            fault = (short(entry.algorithm, entry.digest), f"a file that cannot be read ({reason_of(error)})")
        if fault is not None:
            yield (entry.name, *fault)


def _check(
    path: str, entry: Entry, installed: int | None, advance: Callable[[int], None] | None
) -> tuple[str, str] | None:
    """Return what a file was and what it is, where it is not the same.

    Raises:
        OSError: it cannot be read.
    """
    facts = os.stat(path)  # noqa: PTH116 - one a file, at every start
    if entry.size is not None and facts.st_size != entry.size and stat.S_ISREG(facts.st_mode):
        return f"{entry.size} bytes", f"{facts.st_size} bytes"
    if installed is not None and facts.st_mtime_ns <= installed:
        return None
    found = _hash(path, entry.algorithm, advance)
    return None if found == entry.digest else (short(entry.algorithm, entry.digest), short(entry.algorithm, found))


def _hash(path: str, algorithm: str, advance: Callable[[int], None] | None) -> str:
    """Return the hash of a plain file's bytes, in hexadecimal."""
    hashed = hashlib.new(algorithm)
    with os.fdopen(open_plain(path), "rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            hashed.update(chunk)
            if advance is not None:
                advance(len(chunk))
    return hashed.hexdigest()


def short(algorithm: str, digest: str) -> str:
    """Return the beginning of a digest, as a reader compares it."""
    return f"{algorithm}:{digest[:_SHORT]}"


def strangers(root: str, record: Record, package: str) -> Iterator[str]:
    """Yield the name of each file in a package that RECORD does not name, bytecode apart: Python may import it."""
    known = {entry.name for entry in record.entries}
    found, waiting = [], [package]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(root, *folder.split("/"))))  # noqa: PTH118 - as above
        except OSError:  # its files are missed one by one
            continue
        for entry in entries:
            name = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    waiting.append(name)
            elif name not in known and not name.endswith((".pyc", ".pyo")):
                found.append(name)
    yield from sorted(found)
