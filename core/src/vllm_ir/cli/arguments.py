"""Reading `--args`: an op's arguments written as text, `x=bf16[4,64],weight=none,epsilon=1e-6`.

Reading needs no torch; `realise` makes the values, and imports it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import MalformedArguments, MissingArgument, UnknownArgument, did_you_mean
from vllm_ir.signature import REQUIRED

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

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
    "f8e5m2": "float8_e5m2",
}
"""Short names of dtypes, beside torch's own."""

_TENSOR: Final = re.compile(r"([A-Za-z]\w*)\[([^\[\]]*)\]")
_INTEGER: Final = re.compile(r"[+-]?\d+")
_NUMBER: Final = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|nan)")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "none": None}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor written as `dtype[sizes]`: torch's name of the dtype, and the sizes."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def parse(text: str) -> dict[str, object]:
    """Return the arguments by name: a `TensorSpec`, number, bool, text or None each.

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
        return TensorSpec(_dtype(text, tensor[1]), _sizes(text, name, tensor[2]))
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _INTEGER.fullmatch(value):
        return int(value)
    if _NUMBER.fullmatch(value):
        return float(value)
    word = value.strip("'\"")
    if not re.fullmatch(r"[\w.+-]+", word):
        raise MalformedArguments(text=text, reason=f"the value of {name!r} is {value!r}")
    if word in DTYPES or word in DTYPES.values():
        raise MalformedArguments(text=text, reason=f"tensor {name!r} has no sizes, write {word}[4,64]")
    return word


def _dtype(text: str, name: str) -> str:
    """Return torch's name of a dtype."""
    full = DTYPES.get(name, name)
    if full not in DTYPES.values():
        known = [*DTYPES, *DTYPES.values()]
        raise MalformedArguments(text=text, reason=f"{name!r} is no dtype{did_you_mean(name, known).rstrip('?')}")
    return full


def _sizes(text: str, name: str, sizes: str) -> tuple[int, ...]:
    """Return the sizes between the brackets; none at all is a tensor of no dimensions."""
    parts = [part.strip() for part in sizes.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise MalformedArguments(text=text, reason=f"the sizes of {name!r} are {sizes!r}, wanted whole numbers")
    return tuple(map(int, parts))


def realise(
    op: str, signature: Signature, arguments: Mapping[str, object], device: torch.device | str
) -> tuple[Any, ...]:
    """Return the values of every parameter of an op, in order.

    Args:
        op: the op's name, for errors.
        signature: the parameters of its native function.
        arguments: what `parse` returned.
        device: where tensors are made; floating ones are random, others zero.

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
    return tuple(_tensor(value, device) if isinstance(value, TensorSpec) else value for value in given.values())


def _tensor(spec: TensorSpec, device: torch.device | str) -> torch.Tensor:
    """Return a tensor of this description."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(spec.shape, device=device).to(dtype)
    return torch.zeros(spec.shape, dtype=dtype, device=device)
