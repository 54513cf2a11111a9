"""From the bytes of a lock file to a `Lock`, or an error that names key, got and wanted.

A lock is data from somewhere else: nothing in it is run, no name in it becomes a path, and every value has a shape.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import MalformedLock, did_you_mean, listed
from vllm_ir.lock.document import VERSION, Lock, LockedDistribution, LockedPlatform, Place

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT: Final = r"[^\x00-\x1f\x7f]{1,500}"
_DISTRIBUTION: Final = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_VERSION: Final = r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"
_DIGEST: Final = r"sha256:[0-9a-f]{64}"
_NAME: Final = r"[a-z_][a-z0-9_]*"
_PLATFORM: Final = r"[a-z_][a-z0-9_]*(:[a-z0-9.,]+)?"
_ARCHITECTURE: Final = r"[a-z0-9.]+"
_API: Final = r"[0-9]+"


def parse_lock(content: bytes, file: str) -> Lock:
    """Return what a lock says.

    Args:
        content: bytes of the file.
        file: its path, for errors.

    Raises:
        MalformedLock: it is no lock, or one that only a newer core reads.
    """
    try:
        top = tomllib.loads(content.decode("utf-8"))
    # A number of more digits than Python converts is a ValueError of another kind.
    except (ValueError, RecursionError) as error:
        reason = f"not readable ({' '.join(str(error).split())[:200]})"
        raise MalformedLock(file=file, key="", got=reason, wanted="TOML in UTF-8") from error
    return _lock(_Node(file, top))


def _lock(top: _Node) -> Lock:
    """Return what the whole file says."""
    if isinstance(top.value, dict) and "lock-version" in top.value:
        version = _Node(top.file, top.value["lock-version"], "lock-version")
        if version.value != VERSION or isinstance(version.value, bool):
            if isinstance(version.value, int) and not isinstance(version.value, bool) and version.value > VERSION:
                raise version.wrong(str(version.value)[:80], f"{VERSION}; a newer vllm-ir may read it")
            kind = "text " if isinstance(version.value, str) else ""
            raise version.wrong(f"{kind}{version.value!r}"[:80], f"the number {VERSION}, without quotes")
    table = top.table(required=("lock-version", "core", "distributions", "platforms"), others=("recorded",))
    core = table["core"].table(required=("version", "provider-api"))
    return Lock(
        core=core["version"].text(_VERSION, "a version"),
        provider_api=core["provider-api"].texts(_API, "the version of a provider API"),
        distributions={
            name: _distribution(name, node)
            for name, node in table["distributions"].mapping(_DISTRIBUTION, "a distribution").items()
        },
        platforms={key: _platform(key, node) for key, node in table["platforms"].mapping(_PLATFORM, "one").items()},
        recorded=_recorded(table.get("recorded"), ("python", "torch")),
    )


def _distribution(name: str, node: _Node) -> LockedDistribution:
    """Return one distribution."""
    table = node.table(required=("version", "manifest", "providers"), others=("digest", "editable"))
    if ("digest" in table) == ("editable" in table):
        raise node.wrong("with neither or both of 'digest' and 'editable'", "one of the two")
    if "editable" in table and table["editable"].value is not True:
        raise table["editable"].wrong(repr(table["editable"].value)[:80], "true")
    return LockedDistribution(
        name=name,
        version=table["version"].text(_VERSION, "a version"),
        manifest=table["manifest"].text(_DIGEST, "a digest, sha256:..."),
        providers=table["providers"].texts(_NAME, "a provider's name"),
        digest=table["digest"].text(_DIGEST, "a digest, sha256:...") if "digest" in table else None,
    )


def _platform(key: str, node: _Node) -> LockedPlatform:
    """Return one platform."""
    table = node.table(required=("architectures", "eager", "compiling"), others=("recorded",))
    found = LockedPlatform(
        name=key.partition(":")[0],
        architectures=table["architectures"].texts(_ARCHITECTURE, "an architecture such as '9.0' or 'gfx942'"),
        eager=_orders(table["eager"]),
        compiling=_orders(table["compiling"]),
        recorded=_recorded(table.get("recorded"), ("driver", "toolkit")),
    )
    if found.key != key:
        raise node.wrong(f"about {found.key!r} inside", "about what its name says")
    return found


def _orders(node: _Node) -> dict[str, tuple[Place, ...]]:
    """Return the orders of one mode."""
    return {op: _places(below) for op, below in node.mapping(_NAME, "an op's name").items()}


def _places(node: _Node) -> tuple[Place, ...]:
    """Return one order."""
    places = []
    for item in node.items():
        table = item.table(required=("provider", "layer"))
        provider = table["provider"].text(_NAME, "a provider's name")
        places.append(Place(provider, table["layer"].text(_TEXT, "a layer in words")))
    return tuple(places)


def _recorded(node: _Node | None, known: Sequence[str]) -> dict[str, str]:
    """Return facts that may differ."""
    if node is None:
        return {}
    return {name: below.text(_TEXT, "a version") for name, below in node.table(others=known).items()}


@dataclass(frozen=True, slots=True)
class _Node:
    """A value of the file and the way to it."""

    file: str
    value: Any
    key: str = ""

    def wrong(self, got: str, wanted: str) -> MalformedLock:
        """Return the error for what does not fit."""
        return MalformedLock(file=self.file, key=self.key, got=got, wanted=wanted)

    def table(self, required: Sequence[str] = (), others: Sequence[str] = ()) -> dict[str, _Node]:
        """Return the values of a table whose keys are fixed."""
        known = (*required, *others)
        below = self._below()
        for name in below:
            if name not in known:
                raise below[name].wrong("an unknown key", f"one of {listed(known)}{did_you_mean(name[:80], known)}")
        for name in required:
            if name not in below:
                raise self._at(name, None).wrong("missing", "the key with a value")
        return below

    def mapping(self, pattern: str, what: str) -> dict[str, _Node]:
        """Return the values of a table whose keys are names."""
        below = self._below()
        for name in below:
            if re.fullmatch(pattern, name) is None:
                raise self.wrong(f"a table with {name[:80]!r}", f"names of {what}")
        return below

    def items(self) -> tuple[_Node, ...]:
        """Return the values of a list."""
        if not isinstance(self.value, list):
            raise self.wrong(f"{type(self.value).__name__} {self.value!r}"[:80], "a list")
        return tuple(self._at(f"[{index}]", item) for index, item in enumerate(self.value))

    def text(self, pattern: str, wanted: str) -> str:
        """Return a text of that shape."""
        if not isinstance(self.value, str) or re.fullmatch(pattern, self.value) is None:
            raise self.wrong(f"{type(self.value).__name__} {self.value!r}"[:80], wanted)
        return self.value

    def texts(self, pattern: str, wanted: str) -> tuple[str, ...]:
        """Return a list of texts of that shape."""
        return tuple(item.text(pattern, wanted) for item in self.items())

    def _below(self) -> dict[str, _Node]:
        """Return the values of a table."""
        if not isinstance(self.value, dict):
            raise self.wrong(f"{type(self.value).__name__} {self.value!r}"[:80], "a table")
        return {name: self._at(name, value) for name, value in self.value.items()}

    def _at(self, name: str, value: Any) -> _Node:
        """Return a value below this one."""
        short = name[:80]
        return _Node(self.file, value, f"{self.key}.{short}" if self.key else short)
