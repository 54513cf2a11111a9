"""What was found by measuring on this machine: a small JSON file in the cache folder, read once, checked, and written.

The file holds numbers alone, and every number is checked again where it is used; what does not fit is left out,
and that is logged once. A file that others can write is not read.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.environment import Environment
from vllm_ir.log import logger

from vllm_ir_provider_triton.errors import UnusableTable

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = 1
MOST_BYTES: Final = 1_000_000
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH

Tables = dict[str, dict[str, tuple[int, int]]]
"""Rows of a program and warps, by architecture and key."""


def key(kind: str, size: int, number: int, *, few: bool) -> str:
    """Return what an entry is called: the kind of kernel, the class of its row sizes, bytes of a number, and how many.

    Args:
        kind: "norm", "fused", "gate" or "rotary".
        size: the class of sizes, a power of two.
        number: bytes of one number.
        few: whether it is for few rows.
    """
    return f"{kind} {size}x{number}{' few' if few else ''}"


def file() -> Path:
    """Return where the table lies."""
    return Environment.read().cache / "triton" / "launch.json"


def find(arch: str, name: str) -> tuple[int, int] | None:
    """Return rows and warps that were found for an architecture, or None."""
    return tables().get(arch, {}).get(name)


@cache
def tables() -> Tables:
    """Return what this machine's file says; it is read once a process."""
    path = file()
    try:
        if not path.exists():
            return {}
        return read(path)
    except (OSError, ValueError) as error:
        problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        logger.warning("%s", UnusableTable(path=str(path), problem=problem))
        return {}


def read(path: Path) -> Tables:
    """Return the tables in a file.

    Raises:
        OSError: it cannot be read.
        ValueError: others can write it, or it is no table.
    """
    facts = path.lstat()
    if not (stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode)):  # opening a pipe would wait for who writes it
        msg = "it is no regular file"
        raise ValueError(msg)
    if stat.S_ISLNK(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & OTHERS_WRITE:
        msg = "it is not this user's alone to write"
        raise ValueError(msg)
    if facts.st_size > MOST_BYTES:
        msg = f"it has {facts.st_size} bytes"
        raise ValueError(msg)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        msg = "it is nested too deeply"
        raise ValueError(msg) from error
    if (
        not isinstance(content, dict)
        or content.get("schema") != SCHEMA
        or not isinstance(content.get("launches"), dict)
    ):
        msg = f'it is no object with "schema": {SCHEMA} and "launches"'
        raise ValueError(msg)
    return {arch: _entries(arch, entries) for arch, entries in content["launches"].items()}


def _entries(arch: str, entries: Any) -> dict[str, tuple[int, int]]:
    """Return the entries of one architecture.

    Raises:
        ValueError: one is no pair of positive whole numbers.
    """
    if not isinstance(entries, dict):
        msg = f"{arch} has no table of launches"
        raise ValueError(msg)  # noqa: TRY004 - what is wrong is a file's content
    found = {}
    for name, pair in entries.items():
        whole = isinstance(pair, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in pair)
        if not whole or len(pair) != 2 or min(pair) < 1:  # noqa: PLR2004 - rows and warps
            msg = f"{arch}, {name!r}: {pair!r} is no [rows, warps]"
            raise ValueError(msg)
        found[name] = (pair[0], pair[1])
    return found


def write(path: Path, arch: str, entries: Mapping[str, tuple[int, int]]) -> None:
    """Add entries of an architecture to a file, which is replaced as a whole; what it had for others stays.

    Raises:
        OSError: it cannot be written.
        ValueError: what is there is no table, and is left alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    before = read(path) if path.exists() else {}
    merged = {**before, arch: {**before.get(arch, {}), **entries}}
    content = {"schema": SCHEMA, "launches": {name: merged[name] for name in sorted(merged)}}
    handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".new")  # 0600
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        json.dump(content, out, indent=1, sort_keys=True)
        out.write("\n")
    Path(fresh).replace(path)
    tables.cache_clear()
