"""Functional: both forms of an in-place implementation give the same bits.

Which of them runs depends on who still holds the inputs, and an answer must not. Each form by itself is held against
native by the other checks: the functional one is what `default` runs, the in-place one what `maybe_inplace` runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir_testkit.batch import results
from vllm_ir_testkit.distance import compare
from vllm_ir_testkit.searching import search

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "functional"
SENTENCE: Final = "a functional form gives the bits of the in-place form"


def check(subject: Subject, notes: Notes) -> None:
    """Run both forms on every accepted call and compare bits."""
    form = subject.impl.functional
    if form is None:
        notes.skip("the implementation has no functional form")
        return
    for case, args in subject.accepted(case for case in subject.legal() if case.layout != "repeated"):
        notes.tried()
        what = difference(subject, form, case, args)
        if what is not None:
            notes.fault(case, what)

    def demand(case: Case, args: tuple[Any, ...]) -> str | None:
        """Return where the two forms differ on one drawn call."""
        return None if case.layout == "repeated" else difference(subject, form, case, args)

    search(subject, notes, demand)


def difference(subject: Subject, form: Callable[..., Any], case: Case, args: tuple[Any, ...]) -> str | None:
    """Return in words where the results of the functional form differ from those of the in-place form, or None."""
    try:
        got, wanted = results(form(*args)), subject.donate(subject.build(case))
    except Exception:  # noqa: BLE001 - the refusal check reports what raises
        return None
    if len(got) != len(wanted):
        return f"{len(got)} results, the in-place form has {len(wanted)}"
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {i}: {a.dtype} {tuple(a.shape)}, the in-place form has {b.dtype} {tuple(b.shape)}"
        comparison = compare(a, b)
        if comparison.differing or comparison.zero_signs:
            return (
                f"result {i}: {comparison.differing or comparison.zero_signs} of {comparison.elements} elements have"
                " other bits than the in-place form's"
            )
    return None
