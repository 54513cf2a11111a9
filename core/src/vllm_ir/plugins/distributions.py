"""Which distributions on the path bring providers or commands: one walk, without parsing what is not ours.

What a distribution's manifest says is left to `manifest`, whether it may load to `static`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.plugins.records import ShadowedCopy
from vllm_ir.plugins.walk import HEADERS, normalise, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_ir.plugins.walk import Metadata

__all__ = ["COMMANDS", "PROVIDERS", "EntryPoint", "Installed", "normalise", "parse_entry_points", "scan"]

PROVIDERS: Final = "vllm_ir.providers"
"""Entry-point group of distributions that bring providers."""

COMMANDS: Final = "vllm_ir.commands"
"""Entry-point group of distributions that bring verbs of the command line."""

_VALUE: Final = re.compile(r"\s*([\w.]+)\s*(?::\s*([\w.]+))?\s*(?:\[.*\])?\s*")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One line of a distribution's entry points.

    Args:
        name: left of the equals sign.
        module: what is imported.
        attribute: dotted way to what is taken from it; None for the module itself.
    """

    name: str
    module: str
    attribute: str | None

    @property
    def package(self) -> str:
        """The top-level package of the module."""
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Installed:
    """A distribution with entry points in one of our groups.

    Args:
        name: as its metadata write it.
        version: "unknown" where its metadata do not say, "no metadata" where it has none.
        location: the folder on the path that it is in.
        providers: its entry points in `vllm_ir.providers`.
        commands: its entry points in `vllm_ir.commands`.
        shadowed: further copies of it on the path, in the order of the path.
    """

    name: str
    version: str
    location: str
    providers: tuple[EntryPoint, ...]
    commands: tuple[EntryPoint, ...]
    shadowed: tuple[ShadowedCopy, ...]


def scan(path: Sequence[str] | None = None) -> tuple[Installed, ...]:
    """Return our distributions in the order of the path, those of one folder by name; of one that is twice, the first.

    Args:
        path: folders to look in; default: the path of this process.
    """
    copies: dict[str, list[Metadata]] = {}
    for metadata in walk(path):
        copies.setdefault(metadata.key, []).append(metadata)
    found = []
    for key, (first, *others) in copies.items():
        # The first copy decides, also when it is older than its entry points: it is what Python would import.
        text = first.read("entry_points.txt") if key else ""
        if PROVIDERS in text or COMMANDS in text:
            found.append(_installed(first, others, text))
    # A folder lists its files in any order, and what is shown of it must not depend on that.
    places = {place: index for index, place in enumerate(dict.fromkeys(each.location for each in found))}
    return tuple(sorted(found, key=lambda each: (places[each.location], normalise(each.name))))


def _version(metadata: Metadata, told: str | None) -> str:
    """Return a version, or in words why nobody knows it."""
    return told or ("unknown" if any(map(metadata.read, HEADERS)) else "no metadata")


def _installed(first: Metadata, others: Iterable[Metadata], text: str) -> Installed:
    """Return the facts of one distribution and its shadowed copies."""
    seen = {(first.location, first.fact("Version"))}
    shadowed = []
    for other in others:
        copy = (other.location, other.fact("Version"))
        if copy not in seen:  # one folder may be on the path twice
            seen.add(copy)
            shadowed.append(ShadowedCopy(version=_version(other, copy[1]), location=copy[0]))
    return Installed(
        name=first.fact("Name") or first.key,
        version=_version(first, first.fact("Version")),
        location=first.location,
        providers=parse_entry_points(text, PROVIDERS),
        commands=parse_entry_points(text, COMMANDS),
        shadowed=tuple(shadowed),
    )


def parse_entry_points(text: str, group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of one group, with a broken value as a module that cannot exist.

    Args:
        text: of `entry_points.txt`.
        group: name of the section.
    """
    found, section = [], ""
    for line in (raw.strip() for raw in text.splitlines()):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group:
            name, _, value = line.partition("=")
            match = _VALUE.fullmatch(value)
            module, attribute = match.groups() if match else (value.strip(), None)
            found.append(EntryPoint(name.strip(), module, attribute))
    return tuple(found)
