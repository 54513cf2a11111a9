"""A folder of files that only their owner may touch, each taken only with the right checksum.

What is put into it is the business of the rooms beside this one.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHECKSUMS: Final = "checksums.json"
_BLOCK: Final = 1 << 22


def usable(folder: Path) -> bool:
    """Make a folder for its owner alone, and tell whether it may be trusted and written to."""
    try:
        # One by one, because mkdir gives its mode to the last folder only.
        for missing in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
    except OSError:
        return False
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return False
    return os.access(folder, os.W_OK)


def temporary_folder() -> Path:
    """Make a folder for this process alone and return it; it is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="vllm-ir-models-"))
    found = folder.stat()
    atexit.register(_discard, folder, os.getpid(), (found.st_dev, found.st_ino))
    return folder


def _discard(folder: Path, maker: int, identity: tuple[int, int]) -> None:
    """Remove a temporary folder, unless this is a child of its maker, or something else has its name by now."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        if os.getpid() == maker and (found.st_dev, found.st_ino) == identity:
            shutil.rmtree(folder, ignore_errors=True)


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside the kept ones, so that what was finished in it can be moved into place at once."""
    place = Path(tempfile.mkdtemp(prefix=".making-", dir=folder))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def seal(folder: Path, facts: Mapping[str, str]) -> None:
    """Write the checksums of a folder's files into it, with facts that must hold when it is used again."""
    sums = {file.name: sha256(file) for file in sorted(folder.iterdir())}
    (folder / CHECKSUMS).write_text(json.dumps({"facts": dict(facts), "sha256": sums}, indent=1), encoding="utf-8")


def damage(folder: Path, facts: Mapping[str, str]) -> str | None:
    """Return what is wrong with a sealed folder, or None."""
    try:
        seen = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        sums, made = dict(seen["sha256"]), dict(seen["facts"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its checksums cannot be read"
    for name, value in facts.items():
        if made.get(name) != value:
            return f"it was made with {name} {made.get(name)}, and this is {value}"
    for name, wanted in sums.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if sha256(file) != wanted:
            return f"{name} has changed"
    return None


def place(made: Path, kept: Path) -> None:
    """Move a finished folder to where it is kept; when another process was faster, its folder stays."""
    try:
        made.rename(kept)
    except OSError:
        if not kept.is_dir():
            raise


def remove(kept: Path) -> None:
    """Take a kept folder or file away, out of the way of others first."""
    aside = Path(tempfile.mkdtemp(prefix=".removing-", dir=kept.parent))
    with contextlib.suppress(FileNotFoundError):  # Another process did it.
        kept.rename(aside / kept.name)
    shutil.rmtree(aside, ignore_errors=True)
