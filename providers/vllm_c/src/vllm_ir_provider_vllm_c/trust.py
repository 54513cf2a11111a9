"""Whether a folder or a file may hold somebody else's code, and what its user can do about it.

A cubin is code: whoever can write it, or rename a folder on the way to it, runs as this user. What is done with the
answer is left to `cubins`.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
MOST_FOLDERS: Final = 1000
ANOTHER: Final = "name another folder in VLLM_IR_CACHE"
OWN: Final = "Name a folder below one of your own in VLLM_IR_CACHE"


class Distrust(NamedTuple):
    """Why something is not to be trusted.

    Args:
        problem: as the end of a sentence.
        fix: a sentence without its full stop.
    """

    problem: str
    fix: str


def of_folder(path: Path) -> Distrust | None:
    """Return why what lies in a folder may be somebody else's, judged by it and all folders above it, or None.

    Raises:
        OSError: it is not there, or cannot be looked at.
    """
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return Distrust(f"{path} is a symbolic link", f"Remove the link, or {ANOTHER}")
    if facts.st_uid != os.geteuid():
        return Distrust(f"{path} belongs to user {facts.st_uid}", OWN)
    if facts.st_mode & OTHERS_WRITE:
        return Distrust(f"others can write {path}", f"Make it yours alone (chmod 700 {path}), or {ANOTHER}")
    return next((found for found in map(_of_folder_above, _above(path)) if found is not None), None)


def of_file(facts: os.stat_result) -> str | None:
    """Return why an open file may be somebody else's, as the end of a sentence that begins with it, or None."""
    if not stat.S_ISREG(facts.st_mode):
        return "is no regular file"
    if facts.st_uid != os.geteuid():
        return f"belongs to user {facts.st_uid}"
    return "can be written by others" if facts.st_mode & OTHERS_WRITE else None


def _above(path: Path) -> Iterator[Path]:
    """Yield every folder and link on the way to a path, those that links lead through too."""
    ways, seen = [path.absolute()], set[str]()
    while ways:
        for above in ways.pop().parents:
            if str(above) in seen or len(seen) > MOST_FOLDERS:
                continue
            seen.add(str(above))
            yield above
            if above.is_symlink():
                ways.append(above.parent / above.readlink() / path.name)


def _of_folder_above(path: Path) -> Distrust | None:
    """Return why others could put another folder in the place of one below this one, or None.

    In a folder with the sticky bit only owners rename. A group that has its owner's number is that owner's own.
    """
    facts = path.lstat()
    if facts.st_uid not in (0, os.geteuid()) and path != path.parent:
        return Distrust(f"{path}, above it, belongs to user {facts.st_uid}", OWN)
    if stat.S_ISLNK(facts.st_mode) or facts.st_mode & stat.S_ISVTX:
        return None
    if facts.st_mode & stat.S_IWOTH or (facts.st_mode & stat.S_IWGRP and facts.st_gid != facts.st_uid):
        fix = f"Keep others out of it (chmod go-w {path}), or {ANOTHER}"
        return Distrust(f"others can write {path}, above it, and so put another folder there", fix)
    return None
