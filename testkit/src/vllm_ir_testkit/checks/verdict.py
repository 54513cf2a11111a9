"""Verdict: `supports_args` answers with a bool, or with an `Unsupported` that carries a sentence."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import Unsupported

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "verdict"
SENTENCE: Final = "the predicate answers with a bool or with Unsupported(sentence)"

_FEWEST_WORDS: Final = 2


def check(subject: Subject, notes: Notes) -> None:
    """Look at the answer to every legal call, unusual dtypes included."""
    if subject.impl.predicate is None:
        notes.skip("there is no supports_args: it takes every call")
        return
    reasons = set()
    for case, args in [*((c, subject.build(c)) for c in subject.legal()), *subject.unusual()]:
        answer: object = None
        with contextlib.suppress(Exception):  # the refusal check reports what raises
            answer = subject.impl.supports_args(*args)
            notes.tried()
            what = complaint(answer)
            if what is not None:
                notes.fault(case, what)
        if isinstance(answer, Unsupported):
            reasons.add(answer.reason)
    notes.figures["reasons"] = sorted(reasons)


def complaint(answer: Any) -> str | None:
    """Return in words what is wrong with an answer, or None."""
    if answer is True or answer is False:
        return None
    if not isinstance(answer, Unsupported):
        return f"supports_args returned {type(answer).__name__} {answer!r}, wanted a bool or Unsupported(sentence)"
    if len(answer.reason.split()) < _FEWEST_WORDS:
        return f"the reason {answer.reason!r} is no sentence; say what is needed and what came"
    return None
