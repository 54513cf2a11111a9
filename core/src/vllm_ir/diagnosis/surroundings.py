"""What surrounds a process: versions, files in force and cache folders, from metadata and the file system.

Nothing is imported for it, and nothing that cannot be read ends it: that is what it is there to tell.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform as machine
import shutil
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.platforms.torch_build import find_version_file, read_torch_build
from vllm_ir.plugins.bounded_file import read_bounded
from vllm_ir.plugins.walk import normalise, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LIBRARIES: Final = ("vllm-ir", "pluggy", "packaging", "rich", "transformers", "vllm")
"""Distributions whose versions are told in any case."""

LITTLE: Final = 64 * 2**20
"""Free bytes below which a disk counts as full."""

_VIEWS: Final = frozenset(
    {"bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "mqueue", "proc", "pstore", "securityfs", "sysfs"}
    | {"tracefs"}
)
_MANY: Final = 10_000
_LARGE: Final = 16 * 2**20


@dataclass(frozen=True, slots=True)
class File:
    """One file that decides what runs.

    Attributes:
        role: what it is: "settings", "policy" or "lock".
        path: where it lies.
        named_by: the variable that names it, or where it was looked for.
        mode: permissions and owner, as `ls -l` shows them; None where it cannot be read.
        sha256: of its bytes; None where it cannot be read, or is far too large for what it should be.
        problem: why it is not in force; None where it is.
        note: what is worth knowing of one that is not meant to be in force; None where nothing is.
    """

    role: str
    path: str
    named_by: str
    mode: str | None = None
    sha256: str | None = None
    problem: str | None = None
    note: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "role": self.role,
            "path": self.path,
            "named_by": self.named_by,
            "mode": self.mode,
            "sha256": self.sha256,
            "problem": self.problem,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Folder:
    """The cache folder, or one below it.

    Attributes:
        path: where it lies.
        mode: permissions and owner, as `ls -l` shows them; None where it does not exist.
        files: how many there are in it; counting ends at ten thousand.
        size: bytes of those.
        free: bytes that its disk has left; None where it cannot be asked.
        problem: why it cannot be used as it is; None where it can.
    """

    path: str
    mode: str | None
    files: int
    size: int
    free: int | None
    problem: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "path": self.path,
            "mode": self.mode,
            "files": self.files,
            "bytes": self.size,
            "free_bytes": self.free,
            "problem": self.problem,
        }


def read_versions(libraries: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of what a report is about, by name.

    Args:
        libraries: further distributions; one that is not installed is left out.
    """
    found: dict[str, str] = {}
    wanted = {normalise(name) for name in (*LIBRARIES, *libraries)}
    for metadata in walk():
        if metadata.key in wanted and metadata.key not in found:
            found[metadata.key] = metadata.fact("Version") or "unknown"
    where = "a virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return {
        "vllm-ir": found.pop("vllm-ir", "not installed, runs from a source tree"),
        "torch": str(read_torch_build(find_version_file())),
        "python": f"{machine.python_version()} ({machine.python_implementation()}), {sys.executable}, {where}",
        "system": f"{machine.system()} {machine.release()} {machine.machine()}, {'-'.join(machine.libc_ver())}",
        **dict(sorted(found.items())),
    }


def read_file(role: str, path: Path, named_by: str, problem: str | None = None) -> File:
    """Return the facts of a file that is meant to be in force.

    Args:
        role: what it is.
        path: where it lies.
        named_by: what names it.
        problem: what its reader had to say against it.
    """
    try:
        facts = path.stat()
        large = facts.st_size > _LARGE
        digest = None if large else hashlib.sha256(read_bounded(str(path), _LARGE)).hexdigest()
    except OSError as error:
        return File(role, str(path), named_by, problem=problem or f"It cannot be read: {error.strerror}.")
    return File(role, str(path), named_by, _mode(facts), digest, problem)


def read_caches(cache: Path) -> tuple[Folder, ...]:
    """Return the cache folder and those right below it, which are the providers' own."""
    folders = [cache]
    with contextlib.suppress(OSError):  # what keeps it from being listed is the folder's problem below
        folders += sorted(each for each in cache.iterdir() if each.is_dir() or each.is_symlink())
    return tuple(map(_folder, folders))


def _folder(path: Path) -> Folder:
    """Return the facts of one folder; one that is not there yet is no problem where it can be made."""
    try:
        facts = path.lstat()
    except OSError as error:
        nearest = next((each for each in path.parents if each.exists()), Path("/"))
        why = _closed(nearest)
        problem = f"It cannot be made ({error.strerror}): {nearest} {why}." if why else None
        return Folder(str(path), None, 0, 0, _free(nearest), problem)
    files, size = _contents(path)
    free = _free(path)
    return Folder(str(path), _mode(facts), files, size, free, distrust(path, facts) or _unfit(path, free))


def _closed(folder: Path) -> str | None:
    """Return why no folder can be made in one, or None."""
    if not folder.is_dir():
        return "is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "is not writable"
    kind = _kernels_own(folder)
    return f"is a view of the kernel ({kind}), which keeps no files" if kind else None


def _kernels_own(folder: Path) -> str | None:
    """Return the kind of a file system that only shows what the kernel knows; root may seem to write there."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return None
    whole = folder.resolve()
    at = {Path(fields[1]): fields[2] for fields in mounts if len(fields) > 2}  # noqa: PLR2004 - device, place and kind
    kind = next((at[each] for each in (whole, *whole.parents) if each in at), None)
    return kind if kind in _VIEWS else None


def distrust(path: Path, facts: os.stat_result) -> str | None:
    """Return why what a cache folder holds may be somebody else's code, or None."""
    if stat.S_ISLNK(facts.st_mode):
        return "It is a symbolic link; a cache is used only where it is a folder of its own."
    if not stat.S_ISDIR(facts.st_mode):
        return "It is no folder."
    if facts.st_uid != os.geteuid():
        return f"It belongs to user {facts.st_uid}, and this is user {os.geteuid()}."
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"Others can write it, and what it holds is run as code: chmod 700 {path}."
    return None


def _unfit(path: Path, free: int | None) -> str | None:
    """Return why a folder cannot be written, or None."""
    if not os.access(path, os.W_OK | os.X_OK):
        return "It is not writable; what is made is kept for one process and then thrown away."
    if free is not None and free < LITTLE:
        return f"Its disk is full: {free // 2**20} MB are left."
    return None


def _free(path: Path) -> int | None:
    """Return how many bytes the disk of a folder has left."""
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _contents(path: Path) -> tuple[int, int]:
    """Return how many files a folder holds, and their bytes."""
    files = size = 0
    for file in _walk(path):
        files += 1
        try:
            size += file.lstat().st_size
        except OSError:
            continue
        if files >= _MANY:
            break
    return files, size


def _walk(path: Path) -> Iterator[Path]:
    """Give every file below a folder; links are not followed, and what cannot be listed is empty."""
    for folder, _, names in os.walk(path):
        for name in names:
            yield Path(folder, name)


def _mode(facts: os.stat_result) -> str:
    """Return permissions and owner, as `ls -l` shows them."""
    import grp
    import pwd

    try:
        owner = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        owner = str(facts.st_uid)
    try:
        group = grp.getgrgid(facts.st_gid).gr_name
    except KeyError:
        group = str(facts.st_gid)
    return f"{stat.filemode(facts.st_mode)} {owner} {group}"
