"""Values: what the provider returns equals what native returns, as the contract on numerics says.

Strides are judged elsewhere; a result whose shape or dtype is not native's cannot be compared and fails here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir_testkit import bounds
from vllm_ir_testkit.distance import compare
from vllm_ir_testkit.searching import search

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.distance import Comparison
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "values"
SENTENCE: Final = "equals native: bits for narrow dtypes, within the op's tolerance for wide ones"


def check(subject: Subject, notes: Notes) -> None:
    """Compare every accepted call with native, one by one and all results of a dtype together."""
    totals: dict[torch.dtype, bounds.Total] = {}
    for case, args in subject.accepted():
        wanted = subject.native(args)
        outputs = subject.attempt(args)
        if outputs is None:
            continue
        notes.tried()
        what = disagreement(subject, case, outputs, wanted, totals)
        if what is not None:
            notes.fault(case, what)
    for dtype, total in totals.items():
        what = bounds.total_complaint(total, dtype)
        if what is not None and not notes.findings:
            notes.fault(f"all {_name(dtype)} cases", what)
        notes.figures[_name(dtype)] = {
            "elements": total.elements,
            "differing": total.differing,
            "share": total.share,
            "worst_units": total.worst_units,
        }

    def demand(case: Case, args: tuple[Any, ...]) -> str | None:
        """Return what is wrong with the values of one drawn call."""
        wanted = subject.native(args)
        outputs = subject.attempt(args)
        return None if outputs is None else disagreement(subject, case, outputs, wanted, {})

    search(subject, notes, demand)


def disagreement(
    subject: Subject,
    case: Case,
    outputs: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    totals: dict[torch.dtype, bounds.Total],
) -> str | None:
    """Return in words where results are too far from native's, or None; every comparison is added to `totals`."""
    if len(outputs) != len(wanted):
        return f"{len(outputs)} results, native has {len(wanted)}"
    said = []
    for i, (got, native) in enumerate(zip(outputs, wanted, strict=True)):
        name = f"result {i}: " if len(wanted) > 1 else ""
        if got.shape != native.shape or got.dtype != native.dtype:
            said.append(f"{name}{got.dtype} {tuple(got.shape)}, native has {native.dtype} {tuple(native.shape)}")
            continue
        comparison = measured(subject, case, got, native)
        totals.setdefault(native.dtype, bounds.Total()).add(comparison)
        what = bounds.complaint(comparison, native.dtype, exact=bounds.is_exact(subject.op, native.dtype))
        if what is not None:
            said.append(f"{name}{what}")
    return "; ".join(said) or None


def measured(subject: Subject, case: Case, got: torch.Tensor, native: torch.Tensor) -> Comparison:
    """Return how far one result is from native's."""
    atol, rtol = bounds.tolerance(subject.op, native.dtype, tiny=case.fill == "subnormal")
    if case.fill == "wide" and native.numel():
        # An absolute tolerance is meant for results around one; what is left after a cancellation scales with them.
        atol *= max(1.0, float(native.double().abs().nan_to_num(posinf=0.0).max()))
    return compare(got, native, atol, rtol)


def _name(dtype: torch.dtype) -> str:
    """Return a dtype's name without torch's prefix."""
    return str(dtype).removeprefix("torch.")
