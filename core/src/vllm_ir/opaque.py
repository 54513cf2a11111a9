"""Objects that are no code: what tells one tensor, buffer, loaded library or wrapper of a library from another."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.package_files import hash_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_LARGE: Final = 1 << 20
"""Bytes of a tensor or buffer beyond which only its shape and dtype take part."""

_ADDRESSES: Final = ctypes.c_int.__mro__[-2]
"""The base of all that ctypes makes: what its buffers hold are mostly addresses."""

_WRAPPED: Final = ("__name__", "__wrapped__", "_fun", "_init_fn", "fn", "func", "impl_fn", "predicate")
"""Where libraries keep the function that an object of theirs wraps."""


def attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Yield name and value of an object's attributes, in the order of the names."""
    names = {name for kind in type(value).__mro__ for name in _slots(kind)}
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    yield from sorted({**found, **getattr(value, "__dict__", {})}.items())


def wrapped(value: object) -> Iterator[tuple[str, Any]]:
    """Yield what an object of a library wraps, as far as one can tell: such as the function that it will compile."""
    slots = {name for kind in type(value).__mro__ for name in _slots(kind)}
    held = getattr(value, "__dict__", {})
    for name in _WRAPPED:
        part = held[name] if name in held else getattr(value, name, None) if name in slots else None
        if callable(part) or isinstance(part, str):
            yield name, part


def _slots(kind: type) -> Iterator[str]:
    """Yield the names of the slots that a class adds."""
    slots = vars(kind).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else tuple(slots):
        if name not in ("__dict__", "__weakref__"):
            # The name as the class's body mangles it.
            yield f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def facts(value: object) -> bytes:
    """Return what tells an object from another of its type without running any code of its own; empty for nothing."""
    return _of_torch(value) or _library(value) or _buffer(value)


def _of_torch(value: Any) -> bytes:
    """Return dtype, shape and, of a small one on the CPU, the bytes of a plain tensor; a dtype or device as text."""
    torch = sys.modules.get("torch")
    if torch is None:
        return b""
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value).encode()
    if type(value) not in (torch.Tensor, torch.nn.Parameter):  # another kind may run code when it is asked
        return b""
    told = f"{value.dtype} {value.device.type} {tuple(value.shape)}".encode()
    if value.device.type != "cpu" or value.layout != torch.strided or not value.is_contiguous():
        return told
    size = value.numel() * value.element_size()
    return told + ctypes.string_at(value.data_ptr(), size) if 0 < size <= _LARGE else told


def _library(value: object) -> bytes:
    """Return the digest of the file of a library that ctypes has loaded."""
    if not isinstance(value, ctypes.CDLL):
        return b""
    name = getattr(value, "_name", None)
    return hash_file(name) if isinstance(name, str) and Path(name).is_file() else str(name).encode()


def _buffer(value: Any) -> bytes:
    """Return shape, format and bytes of what offers them, such as an array; of a large one without the bytes."""
    if isinstance(value, _ADDRESSES):
        return b""
    try:
        with memoryview(value) as view:
            told = f"{view.format} {view.shape}".encode()
            plain = view.nbytes <= _LARGE and not {"O", "P"} & set(view.format)
            return told + view.tobytes() if plain else told
    except (TypeError, ValueError, BufferError):
        return b""
