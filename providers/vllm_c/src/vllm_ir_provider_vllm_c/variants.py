"""Which kernels there are: the programs that are compiled, and the instantiations that each of them holds.

A program is one source for one dtype, and is compiled as a whole. Nothing here needs torch, CuPy or a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

CSRC: Final = Path(__file__).parent / "csrc"

DTYPES: Final = {"float32": "float", "bfloat16": "__nv_bfloat16", "float16": "__half"}
"""Dtypes by their name in torch, with the name in CUDA C."""

SIZES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""

ACCESS: Final = 16
"""Bytes that one access moves."""

KEPT: Final = (1, 2, 4, 0)
"""How many packs of a row a thread may keep in registers; 0 reads the row twice."""

QUANT_KEPT: Final = (*((True, kept) for kept in KEPT), (False, 0))
"""The same for what is quantised, with whether it moves 16 bytes at once: rows that do not are always read again."""

TENSOR_SCALE: Final = "tensor_scale"
"""The kernel of the one scale of a tensor, the same in the programs of all dtypes."""

STATIC_PACKS: Final = 2
"""How many packs of a row each thread has where the scale is given."""

OPS: Final = {
    "rms_norm": "norm",
    "fused_add_rms_norm": "norm",
    "silu_and_mul": "gate",
    "gelu_and_mul": "gate",
    "rotary_embedding": "rotary",
    "static_quant_fp8": "quant",
    "dynamic_quant_fp8": "quant",
    "dynamic_group_quant_fp8": "quant",
    "silu_and_mul_static_quant_fp8": "quant",
    "silu_and_mul_dynamic_quant_fp8": "quant",
    "silu_and_mul_group_quant_fp8": "quant",
    "rms_norm_static_quant_fp8": "norm_quant",
    "rms_norm_dynamic_quant_fp8": "norm_quant",
    "fused_add_rms_norm_static_quant_fp8": "norm_quant",
    "fused_add_rms_norm_dynamic_quant_fp8": "norm_quant",
    "fused_qk_norm_rope": "qk_norm_rope",
}
"""The ops, with the source that each of them is in."""

ARGUMENTS: Final = {
    "norm": "NormArguments",
    "gate": "GateArguments",
    "rotary": "RotaryArguments",
    "quant": "QuantArguments",
    "norm_quant": "NormQuantArguments",
    "qk_norm_rope": "QkNormArguments",
}
"""The structure that every kernel of a source takes, its only parameter."""


@dataclass(frozen=True, slots=True)
class Program:
    """One source for one dtype.

    Args:
        source: one of `ARGUMENTS`.
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
        return tuple(_EXPRESSIONS[self.source](self.dtype))


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


@cache
def static_quant(dtype: str, *, gated: bool, aligned: bool) -> str:
    """Return the expression of the kernel that quantises with a given scale, gated rows or plain ones."""
    return f"{_GATED[gated]}static_quant<{DTYPES[dtype]}, {_word(aligned)}, {STATIC_PACKS}>"


@cache
def quant(unit: str, dtype: str, *, gated: bool, aligned: bool, kept: int) -> str:
    """Return the expression of the kernel that finds scales of its own: of each `row`, or of each `group` of a row."""
    return f"{_GATED[gated]}{unit}_quant<{DTYPES[dtype]}, {_word(aligned)}, {kept}>"


@cache
def norm_quant(op: str, dtype: str, *, aligned: bool, kept: int) -> str:
    """Return the expression of the kernel that quantises a norm: of `rms_norm` or `fused_add_rms_norm`."""
    return f"{op}_quant<{DTYPES[dtype]}, {_word(aligned)}, {kept}>"


@cache
def qk_norm_rope(dtype: str, *, aligned: bool, neox: bool) -> str:
    """Return the expression of the kernel that normalises heads and turns them; a part of a pair moves 8 bytes."""
    pairs = ACCESS // SIZES[dtype] // 2 if aligned else 1
    return f"qk_norm_rope<{DTYPES[dtype]}, {pairs}, {_word(neox)}>"


_GATED: Final = {False: "", True: "silu_"}
_BOTH: Final = (True, False)
_NORMS: Final = ("rms_norm", "fused_add_rms_norm")


def _quants(dtype: str) -> Iterator[str]:
    """Give the kernels that quantise rows and gated rows."""
    for gated in _BOTH:
        for aligned in _BOTH:
            yield static_quant(dtype, gated=gated, aligned=aligned)
        for aligned, kept in QUANT_KEPT:
            yield quant("row", dtype, gated=gated, aligned=aligned, kept=kept)
        for aligned, kept in ((True, 1), (True, 0), (False, 0)):
            yield quant("group", dtype, gated=gated, aligned=aligned, kept=kept)
    yield TENSOR_SCALE


_EXPRESSIONS: Final[dict[str, Callable[[str], Iterable[str]]]] = {
    "norm": lambda dtype: (
        norm(op, dtype, aligned=aligned, kept=kept) for op in _NORMS for aligned in _BOTH for kept in KEPT
    ),
    "gate": lambda dtype: (
        gate(each, dtype, aligned=aligned) for each in ("SILU", "GELU", "GELU_TANH") for aligned in _BOTH
    ),
    "rotary": lambda dtype: (rotary(dtype, aligned=aligned, neox=neox) for neox in _BOTH for aligned in _BOTH),
    "quant": _quants,
    "norm_quant": lambda dtype: (
        norm_quant(op, dtype, aligned=aligned, kept=kept) for op in _NORMS for aligned, kept in QUANT_KEPT
    ),
    "qk_norm_rope": lambda dtype: (
        qk_norm_rope(dtype, aligned=aligned, neox=neox) for neox in _BOTH for aligned in _BOTH
    ),
}
"""The kernels of each source for a dtype."""


def _word(flag: bool) -> str:
    """Return a flag as CUDA C writes it."""
    return "true" if flag else "false"


def headers() -> dict[str, str]:
    """Return the text of every header of our own, by the name that sources include it by."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(CSRC.glob("*.h"))}


def source(name: str) -> str:
    """Return the text of a source."""
    return (CSRC / f"{name}.cu").read_text(encoding="utf-8")
