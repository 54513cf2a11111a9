"""What a provider's process said, fit for a report: long lines cut, and what we did to it not taken for its own.

What it means is left to `results`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing import BinaryIO

LINE: Final = 400
"""Characters of a line that are kept."""

_LINES: Final = 40
_ALL: Final = 4000
_READ: Final = 1 << 17
_ABORTED: Final = "Fatal Python error: Aborted"


def shorten(told: Any) -> Any:
    """Return a value of JSON with every line of its texts cut to what somebody reads, and how much was cut."""
    if isinstance(told, str):
        return "\n".join(map(_cut, told.split("\n")))
    if isinstance(told, dict):
        return {name: shorten(value) for name, value in told.items()}
    return [shorten(each) for each in told] if isinstance(told, list) else told


def _cut(line: str) -> str:
    """Return the beginning of a line, with a word about the rest."""
    return line if len(line) <= LINE else f"{line[:LINE]} [cut: {len(line) - LINE} more characters]"


def end_of(printed: BinaryIO) -> str:
    """Return the last lines of what a process printed.

    Args:
        printed: its output, which may be long.
    """
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _READ))
    lines = printed.read().decode("utf-8", "replace").splitlines()[-_LINES:]
    kept: list[str] = []
    for line in reversed([_cut(each) for each in lines]):
        if sum(map(len, kept)) + len(kept) + len(line) > _ALL:
            break
        kept.insert(0, line)
    return "\n".join(kept)


def told_by_us(output: str, why: str) -> str:
    """Return the output of a process that we ended, where that is what it says and not that it crashed.

    Args:
        output: its last lines, with what Python's fault handler says of the signal that we sent.
        why: we ended it, as the end of a sentence that begins with "it".
    """
    ours = f"(vllm-ir ended it: {why}. Where it was then:)"
    before, found, after = output.rpartition(_ABORTED)
    return f"{before}{ours}{after}" if found else f"{ours}\n{output}"
