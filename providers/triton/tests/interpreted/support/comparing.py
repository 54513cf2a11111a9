"""What a result is held to, and the calls of an op: the test kit's own, with few tokens where rows are long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from vllm_ir import ops
from vllm_ir_testkit import bounds
from vllm_ir_testkit.curated import cases_of
from vllm_ir_testkit.distance import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor
    from vllm_ir import IrOp, IrOpImpl
    from vllm_ir_testkit import Case

MOST_TOKENS = 7
MOST_LONG = 3
LONG = 576
ROUNDINGS = {torch.bfloat16: (1, 1e-4), torch.float16: (2, 3e-4)}
"""By how many units a result may be off, and how many of its elements.

Another order of a float32 sum moves a row's scale by a unit, which float16, with 11 bits, shows in some 2 of 10,000
elements, and the weight widens that to two units. bfloat16 has no such excuse.
"""


def tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def complaint(op: IrOp, got: Tensor, wanted: Tensor, *, tiny: bool = False, scale: float = 1.0) -> str | None:
    """Return in words why a result is too far from native's, or None.

    Args:
        op: whose tolerance holds.
        got: the result.
        wanted: native's.
        tiny: whether the inputs are subnormal numbers.
        scale: by how much larger than one numbers are.
    """
    if (got.shape, got.dtype, got.is_contiguous()) != (wanted.shape, wanted.dtype, True):
        return f"{got.dtype} {tuple(got.shape)} {got.stride()}"
    atol, rtol = bounds.tolerance(op, wanted.dtype, tiny=tiny)
    found = compare(got, wanted, atol * scale, rtol)
    if wanted.dtype not in ROUNDINGS or found.special or found.zero_signs:
        return bounds.complaint(found, wanted.dtype)
    units, share = ROUNDINGS[wanted.dtype]
    if found.worst_units > units or found.differing > 1 + found.elements * share:
        return f"{found.differing} of {found.elements} differ, by up to {found.worst_units} units: {found.example}"
    return None


def calls_of(op: str, dtype: str) -> Iterator[tuple[Case, tuple[Any, ...]]]:
    """Yield the calls of the test kit that mean something, with few tokens where rows are long."""
    declared = getattr(ops, op)
    for case in cases_of(declared):
        if case.dtype != dtype:
            continue
        most = MOST_LONG if case.hidden is not None and case.hidden >= LONG else MOST_TOKENS
        short = replace(case, tokens=most) if case.lead is None and case.tokens > most else case
        try:
            args = short.build(declared)
            declared.impls["native"].impl_fn(*args)
        except (ValueError, TypeError, RuntimeError):
            continue
        yield short, args


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written, with the strides that they had where those do not overlap."""
    return tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in args)


def same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors have the same bits."""
    return not compare(one, other).differing


def forms(impl: IrOpImpl) -> dict[str, Callable[..., Any]]:
    """Return the functions of an implementation by name."""
    if impl.functional is None:
        return {"impl_fn": impl.impl_fn}
    return {"functional": impl.functional, "impl_fn": impl.impl_fn}
