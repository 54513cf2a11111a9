"""The calls that every provider is tried with, one unusual thing at a time.

What is illegal for an op, such as an odd hidden size of packed halves, is left out where native raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir_testkit.cases import DTYPES, Case
from vllm_ir_testkit.fills import FILLS
from vllm_ir_testkit.layouts import LAYOUTS
from vllm_ir_testkit.variants import PLAIN, variants_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir import IrOp

SHAPES: Final = (
    Case(tokens=1, hidden=64),
    Case(tokens=1, hidden=64, lead=()),
    Case(tokens=6, hidden=64, lead=(2, 3)),
    Case(tokens=6, hidden=64, lead=(1, 2, 3)),
    Case(tokens=6, hidden=64, lead=(6, 1, 1)),
    Case(tokens=3, hidden=1),
    Case(tokens=3, hidden=7),
    Case(tokens=3, hidden=129),
    Case(tokens=33, hidden=576),
    Case(tokens=65, hidden=4096),
    Case(tokens=4, hidden=16384),
)
"""Sizes: few and many tokens, one to four dimensions, a hidden size of one, odd, of real models, and very large."""

EMPTY: Final = (
    Case(tokens=0, hidden=64),
    Case(tokens=0, hidden=64, lead=(0, 3)),
    Case(tokens=0, hidden=64, lead=(2, 0)),
)
"""No tokens at all: an idle rank, an expert that nobody asked."""

UNUSUAL_DTYPES: Final = ("float64", "float8_e4m3fn", "int32")
"""Dtypes that few kernels take; what a predicate does not accept it has to refuse."""


def cases_of(op: IrOp) -> tuple[Case, ...]:
    """Return the calls for an op; the first of each dtype is plain."""
    return tuple(dict.fromkeys(case for dtype in DTYPES for case in _of_dtype(op, dtype)))


def unusual_cases() -> tuple[Case, ...]:
    """Return calls with dtypes that few kernels take, for the predicate."""
    return tuple(Case(dtype=dtype, layout=layout) for dtype in UNUSUAL_DTYPES for layout in ("contiguous", "packed"))


def _of_dtype(op: IrOp, dtype: str) -> Iterator[Case]:
    """Yield the calls of one dtype."""
    yield Case(dtype=dtype)
    for shape in (*SHAPES, *EMPTY):
        yield Case(tokens=shape.tokens, hidden=shape.hidden, lead=shape.lead, dtype=dtype)
    for layout in LAYOUTS:
        yield Case(dtype=dtype, layout=layout, tokens=7)
        yield Case(dtype=dtype, layout=layout, tokens=6, lead=(2, 3))
    yield Case(dtype=dtype, layout="packed", tokens=33, hidden=576)
    yield Case(dtype=dtype, layout="transposed", tokens=1)
    for fill in FILLS:
        yield Case(dtype=dtype, fill=fill, tokens=16)
    for parameters in ("none", "stepped", *(other for other in DTYPES if other != dtype)):
        yield Case(dtype=dtype, parameters=parameters)
        yield Case(dtype=dtype, parameters=parameters, tokens=17, hidden=576)
    if dtype != "float32":
        yield Case(dtype=dtype, parameters="ties", tokens=17, hidden=576)
    for variant in variants_of(op):
        if variant is not PLAIN:
            yield Case(dtype=dtype, variant=variant)
            yield Case(dtype=dtype, variant=variant, layout="packed", tokens=17)
            yield Case(dtype=dtype, variant=variant, tokens=6, lead=(2, 3))
