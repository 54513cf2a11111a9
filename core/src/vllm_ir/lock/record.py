"""The RECORD of an installed distribution: which of its entries are the package, and one digest of them.

RECORD is text that somebody else wrote: a name in it that leads out of the folder is a finding, and is never opened.
Whether the files are what it says is left to `files`.
"""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.lock.lock_file import reason_of
from vllm_ir.plugins.bounded_file import check_size, read_bounded
from vllm_ir.plugins.walk import Folder

if TYPE_CHECKING:
    from vllm_ir.plugins.walk import Metadata

LIMIT: Final = 32 << 20
"""Bytes that a RECORD may hold; torch's, of 13,000 files, holds 1,300,000."""

_BYTECODE: Final = (".pyc", ".pyo")
_ALGORITHMS: Final = {"sha256": 32, "sha384": 48, "sha512": 64}
"""Hashes that the format allows, with their bytes."""
_SCRIPT: Final = re.compile(r"(\.\./){1,4}(bin|Scripts)/(__pycache__/)?[^/]+")
_DRIVE: Final = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a distribution.

    Args:
        name: its path below the folder that the distribution is in, apart by "/".
        algorithm: of its hash.
        digest: its hash, in hexadecimal.
        size: its bytes; None where RECORD does not say.
    """

    name: str
    algorithm: str
    digest: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Record:
    """What a RECORD says of the package.

    Args:
        entries: the files that count, by name.
        faults: each entry that no digest can cover, with the reason.
    """

    entries: tuple[Entry, ...]
    faults: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """The digest of name and hash of every file: the same wheel has the same one in every environment."""
        total = hashlib.sha256()
        for entry in self.entries:
            total.update(f"{entry.name}\0{entry.algorithm}={entry.digest}\n".encode("utf-8", "surrogateescape"))
        return f"sha256:{total.hexdigest()}"

    def has_package(self, package: str) -> bool:
        """Tell whether files of a top-level package are in it; those of an editable installation are elsewhere."""
        return any(entry.name.startswith(f"{package}/") for entry in self.entries)


class NoRecord(Exception):
    """There is no RECORD that a digest can be taken of; the text says why, as the end of a sentence."""


class LostRecord(NoRecord):
    """There is an installation, and no RECORD of it that an installer could remove it by."""


def read_record(metadata: Metadata) -> Record:
    """Return the RECORD of a distribution.

    Raises:
        NoRecord: it is installed editable.
        LostRecord: there is none, or it cannot be read.
    """
    if _is_editable(metadata):
        raise NoRecord("it is installed editable")
    text = _read(metadata, "RECORD")
    if not text.strip():
        raise LostRecord("its installer left no RECORD")
    return parse_record(text)


def parse_record(text: str) -> Record:
    """Return what the text of a RECORD says.

    Raises:
        LostRecord: it is no table of names, hashes and sizes.
    """
    entries: dict[str, Entry] = {}
    faults: dict[str, str] = {}
    try:
        for row in csv.reader(text.splitlines()):
            name, algorithm, digest, size = _columns(row)
            if not name or not _counts(name):
                continue
            fault = _fault(name, twice=name in entries) or _unhashed(algorithm, digest)
            if fault is not None:
                faults[name] = fault
            else:
                entries[name] = Entry(name, algorithm, digest, size)
    except csv.Error as error:
        raise LostRecord(f"its RECORD cannot be read ({error})") from error
    found = tuple(sorted(entries.values(), key=lambda entry: entry.name))
    return Record(found, tuple(sorted(faults.items())))


def _columns(row: list[str]) -> tuple[str, str, str, int | None]:
    """Return name, algorithm, hash in hexadecimal and size of a line; what a line lacks is empty."""
    name, hashed, size = (*row, "", "", "")[:3]
    algorithm, _, encoded = hashed.partition("=")
    try:
        digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    except (binascii.Error, ValueError):
        digest = ""
    return name, algorithm, digest, int(size) if re.fullmatch(r"[0-9]{1,18}", size) else None


def _counts(name: str) -> bool:
    """Tell whether an entry is part of the package, and not what differs between environments with the same wheel.

    Bytecode is made anew, scripts hold the path of their interpreter, and of the metadata only the entry points decide
    what runs. A name that leads out of the folder counts unless it is a script's, so that it is found.
    """
    if _SCRIPT.fullmatch(name):
        return False
    first, *others = parts = _parts(name)
    if ".." in parts:
        return True
    if name.endswith(_BYTECODE) or "__pycache__" in parts:
        return False
    return not first.endswith(".dist-info") or others == ["entry_points.txt"]


def _parts(name: str) -> list[str]:
    """Return the parts of a name, whichever way the slashes lean."""
    return re.split(r"[/\\]", name)


def _fault(name: str, *, twice: bool) -> str | None:
    """Return why a name is none of a file below the folder, or None."""
    parts = _parts(name)
    if name.startswith(("/", "\\")) or _DRIVE.match(name):
        return "an absolute path"
    if ".." in parts:
        return "a path that leads out of its folder"
    if not all(parts) or "." in parts or "\\" in name or not name.isprintable():
        return "no plain path"
    return "named twice" if twice else None


def _unhashed(algorithm: str, digest: str) -> str | None:
    """Return why a hash is none, or None."""
    size = _ALGORITHMS.get(algorithm)
    return None if size is not None and len(digest) == 2 * size else "without a hash"


def _is_editable(metadata: Metadata) -> bool:
    """Tell whether an installer noted that a distribution is imported from its sources."""
    try:
        told = json.loads(_read(metadata, "direct_url.json") or "{}")
    except (ValueError, RecursionError):
        return False
    info = told.get("dir_info") if isinstance(told, dict) else None
    return isinstance(info, dict) and info.get("editable") is True


def _read(metadata: Metadata, file: str) -> str:
    """Return the text of one of the metadata's files; empty where it is missing.

    Raises:
        LostRecord: it cannot be read, or is larger than such a file can be.
    """
    try:
        if isinstance(metadata, Folder):
            return read_bounded(f"{metadata.root or '.'}/{metadata.name}/{file}", LIMIT).decode("utf-8")
        return check_size(metadata.read(file).encode(), LIMIT, file).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise LostRecord(f"its {file} cannot be read ({reason_of(error)})") from error
