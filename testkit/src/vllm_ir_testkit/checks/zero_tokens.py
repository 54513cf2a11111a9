"""Zero tokens: an idle rank or an expert nobody asked gets an empty result of the right shape, no exception."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "zero_tokens"
SENTENCE: Final = "a call without tokens returns empty results of the right shape"


def check(subject: Subject, notes: Notes) -> None:
    """Run every accepted call without tokens, on both overloads."""
    overloads = {"default": subject.run, **({"maybe_inplace": subject.donate} if subject.op.allow_inplace else {})}
    for case, _ in subject.accepted([case for case in subject.legal() if not case.tokens]):
        wanted = [(tuple(x.shape), x.dtype) for x in subject.native(subject.build(case))]
        for name, run in overloads.items():
            notes.tried()
            try:
                got = [(tuple(x.shape), x.dtype) for x in run(subject.build(case))]
            except Exception as error:  # noqa: BLE001 - any exception is the fault that is looked for
                notes.fault(case, f"{name} raised {in_words(error)}")
                continue
            if got != wanted:
                notes.fault(case, f"{name} returned {got}, wanted {wanted}")
