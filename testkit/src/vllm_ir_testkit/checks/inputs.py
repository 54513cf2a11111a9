"""Inputs: the `default` overload leaves every input as it was, the memory around a view included."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_testkit.memory import Snapshot
from vllm_ir_testkit.searching import search

if TYPE_CHECKING:
    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "inputs"
SENTENCE: Final = "the default overload never writes an input"


def check(subject: Subject, notes: Notes) -> None:
    """Compare the memory of every input before and after each accepted call."""
    for case, args in subject.accepted():
        notes.tried()
        what = written(subject, args)
        if what is not None:
            notes.fault(case, what)

    def demand(_case: Case, args: tuple[Any, ...]) -> str | None:
        """Return which inputs one drawn call writes."""
        return written(subject, args)

    search(subject, notes, demand)


def written(subject: Subject, args: tuple[Any, ...]) -> str | None:
    """Return in words which inputs a call writes, or None."""
    before = Snapshot.take(args)
    with contextlib.suppress(Exception):  # the refusal check reports what raises; a write before it still counts
        subject.run(args)
    names = subject.op.declaration.signature.names
    changed = before.changed(args)
    around = [names[i] for i in changed if before.changed_around(args, i)]
    if around:
        return f"wrote around {', '.join(around)}, into memory that the view does not cover"
    written = ", ".join(names[i] for i in changed)
    return f"wrote to {written}, which the default overload never may" if changed else None
