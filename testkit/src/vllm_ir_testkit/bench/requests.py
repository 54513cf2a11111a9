"""What a benchmark is asked: ops, providers, sizes and dtypes, read from text and checked before anything runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir import runtime
from vllm_ir.cli.arguments import DTYPES
from vllm_ir.errors import UnknownProvider
from vllm_ir.names import NATIVE

from vllm_ir_testkit.errors import BadBenchRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir import IrOp

SHAPES: Final = "1x576,1x4096,16x4096,256x4096,4096x4096"
"""The sizes of a benchmark that names none: decoding and prefill of a small and of a large model."""

FLOATS: Final = ("float32", "bfloat16", "float16", "float64")
"""Dtypes that a benchmark takes."""


@dataclass(frozen=True, slots=True)
class Size:
    """Tokens and hidden size of one measurement."""

    tokens: int
    hidden: int

    def __str__(self) -> str:
        """Return it as it is written."""
        return f"{self.tokens}x{self.hidden}"


def read_sizes(text: str) -> tuple[Size, ...]:
    """Return the sizes of a text such as "1x576,16x4096".

    Raises:
        BadBenchRequest: a part is no size, or there is none.
    """
    sizes = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d+)[x*](\d+)", part)
        if match is None or not int(match[1]) or not int(match[2]):
            raise BadBenchRequest(option="--shapes", got=part, wanted="tokens x hidden size, such as 16x4096")
        sizes.append(Size(int(match[1]), int(match[2])))
    if not sizes:
        raise BadBenchRequest(option="--shapes", got=text, wanted="tokens x hidden size, such as 1x576,16x4096")
    return tuple(dict.fromkeys(sizes))


def read_dtypes(text: str) -> tuple[str, ...]:
    """Return torch's names of the dtypes of a text such as "bf16,float32".

    Raises:
        BadBenchRequest: a part is no floating-point dtype, or there is none.
    """
    names = [DTYPES.get(part, part) for part in filter(None, (piece.strip() for piece in text.split(",")))]
    for name in names or [""]:
        if name not in FLOATS:
            raise BadBenchRequest(option="--dtypes", got=name or text, wanted=f"some of {', '.join(FLOATS)}")
    return tuple(dict.fromkeys(names))


def read_ops(names: Sequence[str]) -> tuple[IrOp, ...]:
    """Return the ops of those names; all that have inputs when none is named.

    Raises:
        UnknownOp: one is not registered.
        BadBenchRequest: one has no input generator.
    """
    from vllm_ir import ops  # noqa: F401 - the core's ops are registered before they are looked up

    state = runtime.current()
    state.load()
    if not names:
        return tuple(sorted((op for op in state.registry if op.has_input_generator), key=lambda op: op.name))
    found = [state.registry.get(name) for name in dict.fromkeys(names)]
    for op in found:
        if not op.has_input_generator:
            raise BadBenchRequest(option="--op", got=op.name, wanted="an op with an input generator")
    return tuple(found)


def read_providers(text: str | None, ops: Sequence[IrOp]) -> tuple[str, ...]:
    """Return the providers of a text such as "native,other"; all that implement one of the ops when it is None.

    Raises:
        UnknownProvider: one is not here.
        BadBenchRequest: there is none in the text.
    """
    known = list(dict.fromkeys([NATIVE, *(name for op in ops for name in op.impls)]))
    if text is None:
        return tuple(known)
    names = tuple(dict.fromkeys(filter(None, (piece.strip() for piece in text.split(",")))))
    if not names:
        raise BadBenchRequest(option="--providers", got=text, wanted="names apart by commas, such as native,other")
    landscape = runtime.current().landscape
    for name in names:
        if name not in known and name not in landscape.distributions and name not in landscape.unusable:
            every = list(dict.fromkeys([*known, *landscape.distributions, *landscape.unusable]))
            raise UnknownProvider(op=", ".join(op.name for op in ops), provider=name, known=every, layer="--providers")
    return names
