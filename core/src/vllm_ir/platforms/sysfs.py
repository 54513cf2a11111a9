"""Reading the kernel's small text files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def read_line(path: Path) -> str | None:
    """Return the text of a file of one line, or None where it is missing, closed to us or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def numbered(folder: Path, prefix: str = "") -> list[Path]:
    """Return what a folder holds under names of a prefix and a number, in the order of the numbers."""
    try:
        paths = [path for path in folder.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return []
    found = [(path.name[len(prefix) :], path) for path in paths]
    return [path for _, path in sorted((int(rest), path) for rest, path in found if rest.isascii() and rest.isdigit())]
