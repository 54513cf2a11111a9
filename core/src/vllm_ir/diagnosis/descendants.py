"""Everything that a child process has started: found by whose child it is, and by a mark in its environment.

A process that starts a session of its own leaves its group, and one whose parent has ended is nobody's child any more.
One that did both, with an environment of its own, before the child ended by itself is not found.
Where there is no /proc, none is, and ending the child's group has to do.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MARK: Final = "_PROBED_IN"
"""The variable whose value tells one child's descendants from all other processes."""

_PROC: Final = Path("/proc")
_ROUNDS: Final = 20


Process = tuple[int, bytes]
"""A process, as its number and when it began: a number alone may become another's."""


def find_descendants(pid: int, mark: str) -> frozenset[Process]:
    """Return the processes that a child has started, and those that they have.

    Args:
        pid: the child; while it lives, what it started is found without a mark, too.
        mark: the value of its mark.
    """
    there = dict(_processes())
    family = {pid}
    while more := {each for each, (parent, _) in there.items() if parent in family} - family:
        family |= more
    wanted = f"{MARK}={mark}".encode()
    marked = {each for each in there if wanted in _environment(each).split(b"\0")}
    return frozenset((each, there[each][1]) for each in (family | marked) - {pid, os.getpid()} if each in there)


def end_descendants(pid: int, mark: str, known: frozenset[Process] = frozenset()) -> None:
    """End what a child has started, until nothing of it is left.

    Args:
        pid: the child, which has not been waited for, so that the number is its own.
        mark: the value of its mark.
        known: what it was seen to have started while it lived.
    """
    for _ in range(_ROUNDS):  # what is ended may have started more since it was looked for
        there = {(each, began) for each, (_, began) in _processes()} if known else set()
        found = find_descendants(pid, mark) | (known & there)
        if not found:
            return
        for each, _ in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Give every process that has not ended, with the one that it is a child of and when it began."""
    try:
        names = [each for each in os.listdir(_PROC) if each.isdigit()]  # noqa: PTH208 - names are all that is asked
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError, ValueError, IndexError):
            # Behind the command's name, which may hold anything, brackets too.
            facts = (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
            if facts[0] not in (b"Z", b"X"):
                yield int(name), (int(facts[1]), facts[19])


def _environment(pid: int) -> bytes:
    """Return the environment that a process was started with; empty where it is not ours to read."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""
