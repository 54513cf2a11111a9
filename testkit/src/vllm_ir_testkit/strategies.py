"""Hypothesis strategies for an op's calls, for the kit and for the tests of authors.

A strategy draws `Case` recipes or the arguments they make; it shrinks towards the op's plain call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from vllm_ir_testkit.cases import DTYPES, Case
from vllm_ir_testkit.fills import FILLS
from vllm_ir_testkit.layouts import LAYOUTS
from vllm_ir_testkit.variants import PLAIN, variants_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from hypothesis.strategies import SearchStrategy
    from vllm_ir import IrOp

__all__ = ["arguments", "cases", "dtypes", "fills", "hidden_sizes", "layouts", "leads"]


def dtypes(among: Sequence[str] = DTYPES) -> SearchStrategy[str]:
    """Return a strategy for dtypes, by torch's names."""
    return st.sampled_from(list(among))


def layouts() -> SearchStrategy[str]:
    """Return a strategy for how activations lie in memory: contiguous, packed, transposed and so on."""
    return st.sampled_from(list(LAYOUTS))


def fills() -> SearchStrategy[str]:
    """Return a strategy for what activations hold: normal, nan, subnormal, negative_zero and so on."""
    return st.sampled_from(list(FILLS))


def leads() -> SearchStrategy[tuple[int, ...]]:
    """Return a strategy for leading sizes, none to three of them, zero tokens included."""
    return st.lists(st.integers(0, 5), max_size=3).map(tuple)


def hidden_sizes() -> SearchStrategy[int | None]:
    """Return a strategy for hidden sizes: the generator's own, around vector widths, and of real models."""
    return st.one_of(
        st.none(),
        st.sampled_from((16, 32, 48, 64, 128, 256, 576, 1024)),
        st.integers(1, 130),
    )


@st.composite
def cases(draw: st.DrawFn, op: IrOp, among: Sequence[str] = DTYPES) -> Case:
    """Draw a call of an op; it need not be legal, since sizes are drawn without knowing what the op means.

    Args:
        draw: given by Hypothesis.
        op: an op with an input generator.
        among: the dtypes to draw from.
    """
    dtype = draw(dtypes(among))
    lead = draw(leads())
    tokens = 1
    for size in lead:
        tokens *= size
    variant = draw(st.sampled_from(variants_of(op)))
    narrow = ("ties",) if dtype in {"bfloat16", "float16"} else ()
    return Case(
        tokens=tokens,
        dtype=dtype,
        hidden=draw(hidden_sizes()) if variant is PLAIN else None,
        lead=lead,
        layout=draw(layouts()),
        fill=draw(fills()),
        parameters=draw(st.sampled_from(("", "none", "stepped", *DTYPES, *narrow))),
        variant=variant,
        seed=draw(st.integers(0, 3)),
    )


def arguments(
    op: IrOp, among: Sequence[str] = DTYPES, device: torch.device | str = "cpu"
) -> SearchStrategy[tuple[Any, ...]]:
    """Return a strategy for legal arguments of an op, by position.

    Args:
        op: an op with an input generator.
        among: the dtypes to draw from.
        device: where the tensors are.
    """
    from vllm_ir_testkit.subject import take

    return cases(op, among).map(lambda case: take(op, case, device) or ()).filter(bool)
