"""Every distribution on the path: where its metadata lie, and single lines out of them, read only when asked for.

The standard library does this too, but importing it takes longer than the whole walk; it is asked only where a finder
or an archive on the path may know distributions that no folder shows.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final, Protocol

from vllm_ir.names import normalise
from vllm_ir.plugins.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HEADERS", "Folder", "Foreign", "Metadata", "normalise", "walk"]

LIMIT: Final = 8 << 20
"""Bytes that a file of metadata may hold, whose largest is a README; one that holds more is as none."""

HEADERS: Final = ("METADATA", "PKG-INFO")
"""Files of metadata that tell name and version."""

_FOLDERS: Final = (".dist-info", ".egg-info")


class Metadata(Protocol):
    """Metadata of one distribution."""

    @property
    def key(self) -> str:
        """The normalised name; empty where nothing tells it."""

    @property
    def location(self) -> str:
        """The folder or archive on the path that it is in, links resolved."""

    def read(self, file: str) -> str:
        """Return the text of one of its files; empty where it is missing, too large, no plain file or no text."""

    def fact(self, header: str) -> str | None:
        """Return one header, such as "Version", or None where it is missing."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Metadata in a folder, or in the single file that very old tools wrote.

    Args:
        root: the folder on the path.
        name: name of the folder with the metadata.
    """

    root: str
    name: str

    @property
    def key(self) -> str:
        """The normalised name, off the folder's name; what an installer has half removed begins with a tilde."""
        name = self.name.rpartition(".")[0].partition("-")[0]
        return "" if name.startswith("~") else normalise(name)

    @property
    def location(self) -> str:
        """The folder on the path, links resolved."""
        return os.path.realpath(self.root)

    def read(self, file: str) -> str:
        """Return the text of one of its files; empty where it is missing or no text."""
        try:
            text = read_bounded(os.path.join(self.root, self.name, file), LIMIT).decode("utf-8")  # noqa: PTH118 - hot
        except (OSError, UnicodeDecodeError):
            return ""
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text

    def fact(self, header: str) -> str | None:
        """Return one header, or None where it is missing."""
        for file in HEADERS:
            for line in self.read(file).splitlines():
                if not line.strip():
                    break
                name, colon, value = line.partition(":")
                if colon and name.strip().lower() == header.lower() and value.strip():
                    return _shown(value.strip())
        return None


@dataclass(frozen=True, slots=True)
class Foreign:
    """Metadata that the standard library has found.

    Args:
        distribution: an `importlib.metadata.Distribution`.
    """

    distribution: Any

    @property
    def key(self) -> str:
        """The normalised name."""
        name = self.fact("Name") or ""
        return "" if name.startswith("~") else normalise(name)

    @property
    def location(self) -> str:
        """The folder or archive on the path, links resolved."""
        return os.path.realpath(str(self.distribution.locate_file("")))

    def read(self, file: str) -> str:
        """Return the text of one of its files; empty where it is missing or no text."""
        try:
            return self.distribution.read_text(file) or ""
        except (OSError, UnicodeDecodeError):
            return ""

    def fact(self, header: str) -> str | None:
        """Return one header, or None where it is missing."""
        try:
            value = self.distribution.metadata[header]
        except Exception:  # noqa: BLE001 - a finder may make distributions of any kind, and newer libraries raise
            return None
        return _shown(str(value)) if value else None


def _shown(text: str) -> str:
    """Return a header that a terminal may be given: somebody else wrote it, and it may hold what a terminal obeys."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def walk(path: Sequence[str] | None = None) -> Iterator[Metadata]:
    """Yield every distribution in the order of the path; one that is there twice comes twice.

    Args:
        path: folders to look in; default: the path of this process.
    """
    entries = list(sys.path if path is None else path)
    if any(map(_is_foreign, sys.meta_path)) or any(map(os.path.isfile, entries)):
        import importlib.metadata

        yield from map(Foreign, importlib.metadata.distributions(path=entries))
        return
    for entry in entries:
        root = entry or os.curdir
        try:
            names = os.listdir(root)  # noqa: PTH208 - hot
        except OSError:
            continue
        for name in names:
            if name.endswith(_FOLDERS) and (found := Folder(root, name)).key:
                yield found


def _is_foreign(finder: object) -> bool:
    """Tell whether a finder may know distributions of its own."""
    return finder is not PathFinder and hasattr(finder, "find_distributions")
