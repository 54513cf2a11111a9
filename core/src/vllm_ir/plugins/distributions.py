"""Which distributions on the path bring providers or commands: one walk, without parsing what is not ours.

What a distribution's manifest says is left to `manifest`, whether it may load to `static`.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.plugins.records import ShadowedCopy

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        version: "unknown" where its metadata do not say.
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


def scan(path: list[str] | None = None) -> tuple[Installed, ...]:
    """Return our distributions in the order of the path; of one that is there twice, the first.

    Args:
        path: folders to look in; default: the path of this process.
    """
    first: dict[str, importlib.metadata.Distribution] = {}
    others: dict[str, list[importlib.metadata.Distribution]] = {}
    texts: dict[str, str] = {}
    for distribution in _distributions(path):
        key = _key(distribution)
        if key is None:
            continue
        if key in first:
            others.setdefault(key, []).append(distribution)
            continue
        first[key] = distribution
        text = _entry_points_text(distribution)
        if PROVIDERS in text or COMMANDS in text:
            texts[key] = text
    # A copy counts as shadowed only if it would have been ours: the first copy may be older than its entry point.
    return tuple(_installed(first[key], key, others.get(key, ()), text) for key, text in texts.items())


def normalise(name: str) -> str:
    """Return a distribution's name as installers compare it: lower case, one hyphen for any run of `-_.`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distributions(path: list[str] | None) -> Iterable[importlib.metadata.Distribution]:
    """Return every distribution on the path."""
    if path is None:
        return importlib.metadata.distributions()
    return importlib.metadata.distributions(path=path)


def _key(distribution: importlib.metadata.Distribution) -> str | None:
    """Return the normalised name, or None for what an installer left behind half removed.

    The library reads it off the folder's name where it can; parsing METADATA of hundreds of distributions takes
    longer than everything else here.
    """
    try:
        name = getattr(distribution, "_normalized_name", None) or distribution.metadata["Name"]
    except Exception:  # noqa: BLE001 - metadata of a stranger may be broken in any way, and is none of our business
        return None
    return normalise(name) if isinstance(name, str) and name and not name.startswith("~") else None


def _entry_points_text(distribution: importlib.metadata.Distribution) -> str:
    """Return the text of a distribution's entry points; empty where there are none that can be read."""
    try:
        return distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _installed(
    distribution: importlib.metadata.Distribution,
    key: str,
    others: Iterable[importlib.metadata.Distribution],
    text: str,
) -> Installed:
    """Return the facts of one distribution and its shadowed copies."""
    location = _location(distribution)
    copies = {(location, _fact(distribution, "Version"))}
    shadowed = []
    for other in others:
        copy = (_location(other), _fact(other, "Version"))
        if copy not in copies:  # one folder may be on the path twice
            copies.add(copy)
            shadowed.append(ShadowedCopy(version=copy[1] or "unknown", location=copy[0]))
    return Installed(
        name=_fact(distribution, "Name") or key,
        version=_fact(distribution, "Version") or "unknown",
        location=location,
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


def _location(distribution: importlib.metadata.Distribution) -> str:
    """Return the folder that a distribution is installed in, links resolved."""
    return os.path.realpath(str(distribution.locate_file("")))


def _fact(distribution: importlib.metadata.Distribution, key: str) -> str | None:
    """Return one line of a distribution's metadata, or None where it is not there."""
    try:
        value = distribution.metadata[key]
    except Exception:  # noqa: BLE001 - newer libraries raise where older ones return None, of several classes
        return None
    return str(value) if value else None
