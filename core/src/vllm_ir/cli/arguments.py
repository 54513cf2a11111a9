"""Reading `--args`: an op's arguments written as text, `x=bf16[4,64],weight=none,epsilon=1e-6`.

A tensor whose rows lie apart has strides behind its sizes: `x=bf16[4,64:192,1]`. A dtype that an op asks for is a name
alone: `dtype=f8e5m2`. Making tensors is left to `stand_ins`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import MalformedArguments, MissingArgument, UnknownArgument, did_you_mean
from vllm_ir.signature import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir.signature import Signature

DTYPES: Final = {
    "f64": "float64",
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "bool": "bool",
    "fp8": "float8_e4m3fn",
    "f8e4m3": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "e4m3fn": "float8_e4m3fn",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2": "float8_e5m2",
}
"""Short names of dtypes, beside torch's own."""

_TENSOR: Final = re.compile(r"((?:torch\.)?[A-Za-z]\w*)\[([^\[\]]*)\]")
_SIZE: Final = re.compile(r"[0-9]{1,19}")
_INTEGER: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|nan)")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor written as `dtype[sizes]` or `dtype[sizes:strides]`.

    Attributes:
        dtype: torch's name of the dtype.
        shape: the sizes.
        strides: in elements, as many as there are sizes; None for a contiguous tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    def __str__(self) -> str:
        """Return it as it is written."""
        strides = "" if self.strides is None else f":{','.join(map(str, self.strides))}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}{strides}]"


@dataclass(frozen=True, slots=True)
class DtypeSpec:
    """A dtype written by its name, without sizes.

    Attributes:
        dtype: torch's name of the dtype.
        text: what was written.
    """

    dtype: str
    text: str


def parse(text: str) -> dict[str, object]:
    """Return the arguments by name: a `TensorSpec`, `DtypeSpec`, number, bool, text or None each.

    Raises:
        MalformedArguments: a part has no name, a name is given twice, or a value cannot be read.
    """
    arguments: dict[str, object] = {}
    for part in _split(text):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier():
            raise MalformedArguments(text=text, reason=f"{part.strip()!r} is not name=value")
        if name in arguments:
            raise MalformedArguments(text=text, reason=f"{name!r} is given twice")
        arguments[name] = _value(text, name, value)
    return arguments


def _split(text: str) -> list[str]:
    """Return the parts between commas that stand outside brackets."""
    if text.count("[") != text.count("]"):
        raise MalformedArguments(text=text, reason="a bracket is left open")
    return [part for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _value(text: str, name: str, value: str) -> object:
    """Return one value."""
    tensor = _TENSOR.fullmatch(value)
    if tensor:
        sizes, colon, strides = tensor[2].partition(":")
        shape = _sizes(text, name, sizes, "sizes")
        apart = _sizes(text, name, strides, "strides") if colon else None
        if apart is not None and len(apart) != len(shape):
            reason = f"{name!r} has {len(shape)} sizes and {len(apart)} strides"
            raise MalformedArguments(text=text, reason=reason)
        return TensorSpec(_dtype(text, tensor[1]), shape, apart)
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    if _NUMBER.fullmatch(value):
        return float(value)
    word = value.strip("'\"")
    if not re.fullmatch(r"[\w.+-]+", word):
        raise MalformedArguments(text=text, reason=f"the value of {name!r} is {value!r}")
    bare = word.removeprefix("torch.")
    if bare in DTYPES or bare in DTYPES.values():
        return DtypeSpec(DTYPES.get(bare, bare), word)
    return word


def _dtype(text: str, name: str) -> str:
    """Return torch's name of a dtype."""
    bare = name.removeprefix("torch.")
    full = DTYPES.get(bare, bare)
    if full not in DTYPES.values():
        raise no_dtype(text, name)
    return full


def no_dtype(text: str, name: str) -> MalformedArguments:
    """Return the error for a name that no dtype has, with all that one has.

    Args:
        text: what was written as a whole.
        name: the part of it that is no dtype.
    """
    shorts: dict[str, list[str]] = {}
    for short, full in DTYPES.items():
        shorts.setdefault(full, []).extend([short] if short != full else [])
    there = ", ".join(f"{full} ({', '.join(names)})" if names else full for full, names in shorts.items())
    near = did_you_mean(name.removeprefix("torch."), [*DTYPES, *DTYPES.values()])
    return MalformedArguments(text=text, reason=f"{name!r} is no dtype.{near} There are {there}")


def _sizes(text: str, name: str, sizes: str, what: str) -> tuple[int, ...]:
    """Return the sizes or strides between the brackets; none at all is a tensor of no dimensions."""
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not all(_SIZE.fullmatch(part) for part in parts):
        wanted = "whole numbers of at most 19 digits, none below zero"
        raise MalformedArguments(text=text, reason=f"the {what} of {name!r} are {sizes!r}, wanted {wanted}")
    return tuple(map(int, parts))


def complete(op: str, signature: Signature, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return what stands for every parameter of an op, in order, defaults filled in.

    Args:
        op: the op's name, for errors.
        signature: the parameters of its native function.
        arguments: what `parse` returned.

    Raises:
        UnknownArgument: a name that the op does not have.
        MissingArgument: a parameter without default that is not given.
    """
    names = [parameter.name for parameter in signature.parameters]
    for name in arguments:
        if name not in names:
            raise UnknownArgument(op=op, argument=name, known=names)
    given = {one.name: arguments.get(one.name, one.default) for one in signature.parameters}
    missing = [name for name, value in given.items() if value is REQUIRED]
    if missing:
        raise MissingArgument(op=op, missing=missing)
    return given
