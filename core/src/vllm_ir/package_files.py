"""The bytes of an installed distribution: which files are its code, and one digest of them.

Paths take part as they are below the package, so that one wheel has one digest in every environment. An archive on
the path has the digest of the same files in a folder. What a digest is good for is left to `fingerprint`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.plugins.distributions import PROVIDERS, parse_entry_points
from vllm_ir.plugins.walk import normalise, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.machinery import ModuleSpec

    from vllm_ir.plugins.walk import Metadata

_CHUNK: Final = 1 << 20
"""Bytes read at a time."""

_BYTECODE: Final = (".pyc", ".pyo")
_METADATA: Final = (".dist-info", ".egg-info", ".data")
_CORE: Final = "vllm_ir"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a distribution consists of.

    Args:
        version: "unknown" where it is not installed or does not say.
        packages: the top-level packages whose files were read.
        digest: sha256 of name, version, and name and bytes of every file, in hex.
    """

    version: str
    packages: frozenset[str]
    digest: str


def read_contents(distribution: str) -> Contents:
    """Return what a distribution consists of, as it lies on the path of this process; nothing of it is imported.

    It covers every file of the packages that its entry points and its `top_level.txt` name, where Python would import
    them from, and every other file that its installer recorded in a folder, such as libraries beside the package.
    Bytecode that was made from a source, and names that begin with a dot, are left out.

    Args:
        distribution: its name, in any spelling that installers accept.
    """
    key = normalise(distribution)
    metadata = next((each for each in walk() if each.key == key), None)
    version = (metadata.fact("Version") if metadata else None) or "unknown"
    modules = _modules(metadata)
    if key == normalise(_CORE):
        modules.add(_CORE)  # it may run from a source tree without being installed
    total = hashlib.sha256(f"{key}\0{version}\0".encode())
    packages, seen = set[str](), set[str]()
    for module in sorted(modules):
        spec = _find(module)
        if spec is None:
            continue
        found = False
        for name, digest in _read_module(spec, seen):
            found = True
            _add(total, spec.name, name, digest)
        if found:
            packages.add(spec.name.partition(".")[0])
    for name, path in _recorded(metadata):
        if os.path.realpath(path) not in seen:
            _add(total, "", name, hash_file(path))
    return Contents(version, frozenset(packages), total.hexdigest())


def hash_file(path: str) -> bytes:
    """Return the sha256 of a file's bytes; of a file that cannot be read, that of a word which says so."""
    try:
        with open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - hot
            return _hash_stream(stream)
    except OSError:
        return hashlib.sha256(b"unreadable").digest()


def _hash_stream(stream: Any) -> bytes:
    """Return the sha256 of what is left of a stream, without holding more than one chunk of it."""
    hashed = hashlib.sha256()
    while chunk := stream.read(_CHUNK):
        hashed.update(chunk)
    return hashed.digest()


def _add(total: Any, package: str, name: str, digest: bytes) -> None:
    """Add one file to a digest; what is written is of known length or ends with a zero, which no name holds."""
    total.update(os.fsencode(f"{package}\0{name}\0"))
    total.update(digest)


def _modules(metadata: Metadata | None) -> set[str]:
    """Return the dotted names of what a distribution brings, as far as its metadata tell."""
    if metadata is None:
        return set()
    points = parse_entry_points(metadata.read("entry_points.txt"), PROVIDERS)
    names = {point.module for point in points if all(map(str.isidentifier, point.module.split(".")))}
    named = {name.partition(".")[0] for name in names}
    return names | {name for name in metadata.read("top_level.txt").split() if name.isidentifier()} - named


def _find(module: str) -> ModuleSpec | None:
    """Return the top-level package of a module, or below a namespace the first one that is no namespace itself."""
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
        while rest and spec is not None and spec.origin is None and spec.submodule_search_locations is not None:
            name, locations = f"{spec.name}.{rest.pop(0)}", spec.submodule_search_locations
            finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
            spec = next((found for find in finders if (found := find(name, locations))), None)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec


def _read_module(spec: ModuleSpec, seen: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and digest of each file of a package, or of the one file of a module; note what was read in `seen`."""
    folders = list(spec.submodule_search_locations or ())
    archive = getattr(spec.loader, "archive", None)
    if archive is not None:
        yield from _read_archive(archive, folders or [spec.origin or ""])
    elif not folders and spec.origin is not None and Path(spec.origin).is_file():
        seen.add(os.path.realpath(spec.origin))
        yield Path(spec.origin).name, hash_file(spec.origin)
    for folder in folders:
        for name, path in _below(folder):
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                yield name, hash_file(path)


def _below(root: str) -> Iterator[tuple[str, str]]:
    """Yield the name below a folder and the path of each file in it, in the order of the names; links are followed."""
    found, visited, waiting = [], set[str](), [("", root)]
    while waiting:
        prefix, folder = waiting.pop()
        real = os.path.realpath(folder)
        if real in visited:  # a link back up
            continue
        visited.add(real)
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        names = {entry.name for entry in entries}
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__" and not entry.name.startswith("."):
                    waiting.append((f"{prefix}{entry.name}/", entry.path))
            elif entry.is_file() and _counts(entry.name, has_source=_source(entry.name) in names):
                found.append((prefix + entry.name, entry.path))
    yield from sorted(found)


def _counts(name: str, *, has_source: bool) -> bool:
    """Tell whether a file takes part: bytecode only where there is no source that it was made from."""
    return not name.startswith(".") and not (name.endswith(_BYTECODE) and has_source)


def _source(name: str) -> str:
    """Return the name of the source that a file of bytecode beside it is made from."""
    return f"{name.rpartition('.')[0]}.py"


def _read_archive(archive: str, places: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield name and digest of each file below folders of an archive, or of single files in it."""
    with zipfile.ZipFile(archive) as opened:
        names = sorted(opened.namelist())
        known = set(names)
        for place in places:
            prefix = os.path.relpath(place, archive).replace(os.sep, "/")
            found = [(name[len(prefix) + 1 :], name) for name in names if name.startswith(f"{prefix}/")]
            for below, name in [(prefix.rpartition("/")[2], prefix)] if prefix in known else found:
                *parents, last = below.split("/")
                hidden = any(parent == "__pycache__" or parent.startswith(".") for parent in parents)
                if last and not hidden and _counts(last, has_source=_source(name) in known):
                    with opened.open(name) as stream:
                        yield below, _hash_stream(stream)


def _recorded(metadata: Metadata | None) -> Iterator[tuple[str, str]]:
    """Yield name and path of each file that the installer recorded in a folder that is not its own."""
    if metadata is None or not Path(metadata.location).is_dir():
        return
    names = [line.rpartition(",")[0].rpartition(",")[0].strip('"') for line in metadata.read("RECORD").splitlines()]
    for name in sorted(names):
        top, *rest = parts = name.replace("\\", "/").split("/")
        own = not rest or top.endswith(_METADATA) or "__pycache__" in rest or name.endswith(_BYTECODE)
        path = Path(metadata.location, name)
        # A name that begins with a dot, or with nothing, leads out of the folder or is hidden.
        if not own and all(part and not part.startswith(".") for part in parts) and path.is_file():
            yield name, str(path)
