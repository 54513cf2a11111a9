"""Which kernels there are: the programs that are compiled, and the instantiations that each of them holds.

A program is one source for one dtype, and is compiled as a whole. Nothing here needs torch, CuPy or a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

CSRC: Final = Path(__file__).parent / "csrc"

DTYPES: Final = {"float32": "float", "bfloat16": "__nv_bfloat16", "float16": "__half"}
"""Dtypes by their name in torch, with the name in CUDA C."""

SIZES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""

ACCESS: Final = 16
"""Bytes that one access moves."""

KEPT: Final = (1, 2, 4, 0)
"""How many packs of a row a thread may keep in registers; 0 reads the row twice."""

OPS: Final = {
    "rms_norm": "norm",
    "fused_add_rms_norm": "norm",
    "silu_and_mul": "gate",
    "gelu_and_mul": "gate",
    "rotary_embedding": "rotary",
}
"""The ops, with the source that each of them is in."""

ARGUMENTS: Final = {"norm": "NormArguments", "gate": "GateArguments", "rotary": "RotaryArguments"}
"""The structure that every kernel of a source takes, its only parameter."""


@dataclass(frozen=True, slots=True)
class Program:
    """One source for one dtype.

    Args:
        source: "norm", "gate" or "rotary".
        dtype: the dtype's name in torch.
    """

    source: str
    dtype: str

    @property
    def name(self) -> str:
        """What errors and files call it."""
        return f"{self.source}_{self.dtype}"

    @property
    def expressions(self) -> tuple[str, ...]:
        """Its kernels, each as the expression in CUDA C that names it."""
        if self.source == "norm":
            return tuple(
                norm(op, self.dtype, aligned=aligned, kept=kept)
                for op in ("rms_norm", "fused_add_rms_norm")
                for aligned in (True, False)
                for kept in KEPT
            )
        if self.source == "gate":
            return tuple(
                gate(activation, self.dtype, aligned=aligned)
                for activation in ("SILU", "GELU", "GELU_TANH")
                for aligned in (True, False)
            )
        return tuple(
            rotary(self.dtype, aligned=aligned, neox=neox) for neox in (True, False) for aligned in (True, False)
        )


PROGRAMS: Final = tuple(Program(source, dtype) for source in ARGUMENTS for dtype in DTYPES)
"""All programs."""


@cache
def program(source: str, dtype: str) -> Program:
    """Return a program; always the same object, since every launch asks for one."""
    return Program(source, dtype)


@cache
def norm(op: str, dtype: str, *, aligned: bool, kept: int) -> str:
    """Return the expression of a norm's kernel: `rms_norm` or `fused_add_rms_norm`."""
    return f"{op}<{DTYPES[dtype]}, {_word(aligned)}, {kept}>"


@cache
def gate(activation: str, dtype: str, *, aligned: bool) -> str:
    """Return the expression of a gated activation's kernel: `SILU`, `GELU` or `GELU_TANH`."""
    return f"gate<{DTYPES[dtype]}, {_word(aligned)}, {activation}>"


@cache
def rotary(dtype: str, *, aligned: bool, neox: bool) -> str:
    """Return the expression of the rotation's kernel; aligned pairs move 16 bytes at once."""
    pairs = ACCESS // SIZES[dtype] >> (not neox) if aligned else 1
    return f"rotary<{DTYPES[dtype]}, {pairs}, {_word(neox)}>"


def _word(flag: bool) -> str:
    """Return a flag as CUDA C writes it."""
    return "true" if flag else "false"


def headers() -> dict[str, str]:
    """Return the text of every header of our own, by the name that sources include it by."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(CSRC.glob("*.h"))}


def source(name: str) -> str:
    """Return the text of a source."""
    return (CSRC / f"{name}.cu").read_text(encoding="utf-8")
