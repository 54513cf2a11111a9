"""Constants and loaded code as bytes that are the same in every process: no path, no address, no order of a set."""

from __future__ import annotations

import dis
import functools
import os
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SCALARS: Final = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_CODE: Final = (
    "co_name",
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_flags",
    "co_code",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
)


def join(parts: Iterable[bytes]) -> bytes:
    """Return parts as one text from which they can be told apart again."""
    return b"".join(b"%d:%b" % (len(part), part) for part in parts)


def constant(value: object, *, placed: bool = True) -> bytes | None:
    """Return a constant as bytes: scalars, and tuples and frozensets of them; None for anything else.

    Args:
        value: the constant.
        placed: whether a path takes part as it is; otherwise only its last part does, since where a program was
            installed says nothing of what it does.
    """
    kind = type(value)
    if kind in _SCALARS:
        text = Path(value).name if not placed and isinstance(value, str) and _is_place(value) else value
        return join((kind.__name__.encode(), repr(text).encode("utf-8", "surrogatepass")))
    if isinstance(value, (tuple, frozenset)) and kind in (tuple, frozenset):
        members = [constant(member, placed=placed) for member in value]
        known = [member for member in members if member is not None]
        if len(known) == len(members):
            return join((kind.__name__.encode(), *(known if kind is tuple else sorted(known))))
    return None


def _is_place(value: str) -> bool:
    """Tell whether a text is the absolute path of something on this machine, and not just a slash."""
    try:
        return os.path.isabs(value) and Path(value).name != "" and Path(value).exists()  # noqa: PTH117 - hot
    except (ValueError, OSError):  # a zero in it, or too long
        return False


def encode(code: CodeType) -> bytes:
    """Return what a code object does as bytes; where it was written, file and lines, does not take part."""
    facts = [constant(getattr(code, name)) or b"" for name in _CODE]
    facts.append(getattr(code, "co_exceptiontable", b""))
    facts.extend(
        encode(value) if isinstance(value, CodeType) else constant(value) or repr(type(value)).encode()
        for value in code.co_consts
    )
    return join(facts)


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and every one inside it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from nested(value)


@functools.lru_cache(maxsize=4096)
def loaded(code: CodeType) -> tuple[str, ...]:
    """Return the global names that code reads, sorted."""
    return _names(code, "LOAD_GLOBAL", "LOAD_NAME")


@functools.lru_cache(maxsize=4096)
def rebound(code: CodeType) -> frozenset[str]:
    """Return the names of its closure that code itself sets to another value."""
    names = {
        instruction.argval
        for inner in nested(code)
        for instruction in _instructions(inner, "STORE_DEREF", "DELETE_DEREF")
        if instruction.argval in inner.co_freevars
    }
    return frozenset(names)


def stored(scope: Mapping[str, Any]) -> frozenset[str]:
    """Return the globals of a module that its functions and methods set to another value: state, not constants."""
    found: set[str] = set()
    for value in list(scope.values()):
        members = [value, *vars(value).values()] if isinstance(value, type) else [value]
        for member in members:
            code = getattr(member, "__code__", None)
            if isinstance(code, CodeType) and getattr(member, "__globals__", None) is scope:
                found.update(_names(code, "STORE_GLOBAL", "DELETE_GLOBAL"))
    return frozenset(found)


def _names(code: CodeType, *operations: str) -> tuple[str, ...]:
    """Return the names that operations in code, and in code inside it, are about."""
    found = {instruction.argval for inner in nested(code) for instruction in _instructions(inner, *operations)}
    return tuple(sorted(found))


def _instructions(code: CodeType, *operations: str) -> Iterator[dis.Instruction]:
    """Yield the instructions of some kinds; the byte is looked for first, since taking code apart is slow."""
    kinds = {dis.opmap[operation] for operation in operations if operation in dis.opmap}
    if kinds.isdisjoint(code.co_code[::2]):
        return
    yield from (instruction for instruction in dis.get_instructions(code) if instruction.opcode in kinds)
