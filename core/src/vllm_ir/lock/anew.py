"""The command line that writes a lock anew: with the file, the platforms and the leave that the lock has now.

Whether that is what mends a difference is left to `comparing` and to who reads it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_ir.lock.document import FILE

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Anew:
    """How a lock is written anew.

    Args:
        file: the lock, as it was named.
        platforms: keys of the sections that it has.
        here: key of this machine's platform; None where it was not looked at.
        editable: whether it holds distributions without a digest.
    """

    file: str = FILE
    platforms: Collection[str] = ()
    here: str | None = None
    editable: bool = False

    @property
    def command(self) -> str:
        """The command line."""
        return write_command(self.file, self.platforms, self.here, editable=self.editable)

    @property
    def offer(self) -> str:
        """The end of a sentence that has said another way out."""
        return f"or write the lock anew: {self.command}."


def write_command(file: str, platforms: Collection[str], here: str | None, *, editable: bool = False) -> str:
    """Return the command line that writes a lock with these sections.

    Args:
        file: the lock.
        platforms: keys of its sections; one with several architectures cannot be named and is left out.
        here: key of this machine's platform, which alone needs no name; None where it is not known.
        editable: whether it holds distributions without a digest.
    """
    words = ["vllm-ir", "lock"]
    if file != FILE:
        words += ["--lock", shlex.quote(file)]
    if set(platforms) - {here}:
        words += [word for key in sorted(platforms) if can_be_named(key) for word in ("--platform", key)]
    if editable:
        words.append("--allow-editable")
    return " ".join(words)


def can_be_named(key: str) -> bool:
    """Tell whether `--platform` takes the key of a section: one machine's devices of several kinds have no name."""
    return "," not in key
