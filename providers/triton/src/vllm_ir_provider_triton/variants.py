"""What is compiled: one program for some dtypes, constants and warps; and a launch of it. Nothing here needs Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

ACCESS: Final = 16
"""Bytes that one access of a thread moves at most."""

SIZES: Final = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
}
"""Bytes of one number, by torch's name of its dtype."""

TYPES: Final = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "int32": "i32",
    "int64": "i64",
    "float8_e4m3fn": "u8",
    "float8_e4m3fnuz": "u8",
    "float8_e5m2": "u8",
}
"""Triton's names of dtypes, by torch's; 8-bit floats are written as their bits, which every GPU can."""

LIMITS: Final = {"float8_e4m3fn": 448, "float8_e4m3fnuz": 224, "float8_e5m2": 57344}
"""The largest magnitude that quantisation gives, by dtype: the programs know a format by it."""

SILU, GELU, GELU_TANH = 0, 1, 2
"""Activations, as the program `gate` numbers them."""

NUMBERS: Final = {
    "norm": ("i64", "i64", "i32", "i32", "i64", *("i64",) * 8, "fp32"),
    "gate": ("i64", "i32", "i64", "i32", *("i64",) * 4),
    "rotary": (*("i64",) * 5, "i32", "i32", "i64", "i64", *("i32",) * 4, *("i64",) * 13),
    "scaled": ("i64", "i32", "i64", "i32", *("i64",) * 4),
    "peak": ("i64", "i32", "i64", *("i64",) * 4),
    "grouped": ("i64", "i32", "i64", "i32", *("i64",) * 6),
    "norm_quant": ("i64", "i64", "i32", "i64", *("i64",) * 8, "fp32"),
    "qk_norm_rope": (*("i64",) * 5, "i32", "i32", "i64", "i64", *("i32",) * 4, *("i64",) * 13, "fp32"),
}
"""Types of what a program takes behind its pointers."""

POINTERS: Final = {
    "norm": 5,
    "gate": 2,
    "rotary": 5,
    "scaled": 2,
    "peak": 1,
    "grouped": 2,
    "norm_quant": 5,
    "qk_norm_rope": 7,
}
"""How many pointers of a program, from the first, are multiples of an access where every row begins at one."""

ALIGNED: Final = {
    "norm": 3,
    "gate": 2,
    "rotary": 7,
    "scaled": 2,
    "peak": 2,
    "grouped": 2,
    "norm_quant": 3,
    "qk_norm_rope": 7,
}
"""How many of those numbers, from the first, are such multiples in elements of the first pointer."""


class Variant(NamedTuple):
    """A program as it is compiled; a tuple, since one is looked up at every call.

    Attributes:
        program: its name, such as "norm".
        dtypes: torch's names of what its pointers point to.
        constants: its constants, in the order of its parameters.
        wide: whether every pointer and stride is a multiple of 16 bytes, so that loads may be.
        warps: of one block.
    """

    program: str
    dtypes: tuple[str, ...]
    constants: tuple[int, ...]
    wide: bool
    warps: int

    def __str__(self) -> str:
        """Return what errors call it."""
        return f"{self.program} of {self.dtypes[0]} {self.constants} with {self.warps} warps"


class Launch(NamedTuple):
    """One launch with all that it needs.

    Attributes:
        variant: what is launched.
        blocks: how many programs; none means that there is nothing to do.
        tensors: what its pointers point into, which are kept alive by this.
        addresses: the pointers.
        numbers: what follows them.
    """

    variant: Variant
    blocks: int
    tensors: tuple[Tensor, ...]
    addresses: tuple[int, ...]
    numbers: tuple[int | float, ...]
