"""Refusal: what a provider does not support it refuses with a verdict, before the call; nothing ever raises.

Whether a verdict is well formed is judged by `verdict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir_testkit.notes import in_words
from vllm_ir_testkit.searching import search

if TYPE_CHECKING:
    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "refusal"
SENTENCE: Final = "refuses instead of raising, for every call that the op allows"


def check(subject: Subject, notes: Notes) -> None:
    """Ask about every legal call, unusual dtypes included, and run what is accepted."""
    refusals = 0
    for case in subject.legal():
        what, refused = _try(subject, subject.build(case))
        refusals += refused
        notes.tried()
        if what is not None:
            notes.fault(case, what)
    for case, args in subject.unusual():
        what, refused = _try(subject, args)
        refusals += refused
        notes.tried()
        if what is not None:
            notes.fault(case, what)
    notes.figures["refused"] = refusals

    def demand(_case: Case, args: tuple[Any, ...]) -> str | None:
        """Return what one drawn call raises."""
        return _try(subject, args)[0]

    search(subject, notes, demand, refused=True)


def _try(subject: Subject, args: tuple[Any, ...]) -> tuple[str | None, bool]:
    """Return what a call raises in words, or None, and whether it was refused."""
    try:
        verdict = subject.impl.supports_args(*args)
    except Exception as error:  # noqa: BLE001 - any exception is the fault that is looked for
        return f"supports_args raised {in_words(error)}", True
    if not isinstance(verdict, bool) or not verdict:
        return None, True
    try:
        subject.run(args)
    except Exception as error:  # noqa: BLE001 - any exception is the fault that is looked for
        return f"accepted, then raised {in_words(error)}; supports_args has to refuse it", False
    return None, False
