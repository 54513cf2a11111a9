"""Aliasing: what `maybe_inplace` writes and returns, which `opcheck` refuses to look at.

In-place writes touch activations only, and no memory around them; a result is fresh, or is the activation of its own
position; the values are those of native all the same. Without a declaration `inplace` no result is an input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir_testkit import memory
from vllm_ir_testkit.checks.values import disagreement
from vllm_ir_testkit.memory import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "aliasing"
SENTENCE: Final = "in-place writes only activations, and results are fresh or the activation that was donated"


def check(subject: Subject, notes: Notes) -> None:
    """Donate the activations of every accepted call; for an op without `maybe_inplace` look at `default` alone."""
    cases = [case for case in subject.legal() if case.layout != "repeated"]
    for case, args, outputs in subject.runs(notes, cases):
        for what in shared(subject, args, outputs, donated=False):
            notes.fault(case, f"default: {what}")
    if not subject.op.allow_inplace:
        return
    for case, args in subject.accepted(cases):
        for what in donated(subject, case, args):
            notes.fault(case, f"maybe_inplace: {what}")


def donated(subject: Subject, case: Case, args: tuple[Any, ...]) -> list[str]:
    """Return in words what is wrong with a call of `maybe_inplace`."""
    wanted = subject.native(args)
    before = Snapshot.take(args)
    try:
        outputs = subject.donate(args)
    except Exception:  # noqa: BLE001 - the refusal check reports what raises
        return []
    names = subject.op.declaration.signature.names
    own = set(subject.op.activation_indices)
    said = [f"wrote to {names[i]}, which is no activation" for i in before.changed(args) if i not in own]
    for i in sorted(own):
        if not subject.impl.inplace and before.changed(args, [i]):
            said.append(f"wrote to {names[i]}, and the implementation is not declared inplace")
        elif before.changed_around(args, i):
            said.append(f"wrote around {names[i]}, into memory that the view does not cover")
    said += shared(subject, args, outputs, donated=subject.impl.inplace)
    what = disagreement(subject, case, outputs, wanted, {})
    return [*said, *([what] if what else [])]


def shared(subject: Subject, args: Sequence[Any], outputs: Sequence[Any], *, donated: bool) -> list[str]:
    """Return in words which results lie in memory where they must not.

    Args:
        subject: the op and the provider.
        args: of the call.
        outputs: its results.
        donated: whether a result may be the activation of its position.
    """
    names = subject.op.declaration.signature.names
    activations = subject.op.activation_indices
    said = []
    for i, result in enumerate(outputs):
        for j, argument in enumerate(args):
            if not hasattr(argument, "untyped_storage") or not memory.share(result, argument):
                continue
            # The last results stand for the activations; scales and the like come before them.
            own = i - (len(outputs) - len(activations))
            may = donated and own >= 0 and activations[own] == j
            if not may:
                said.append(f"result {i} shares memory with input {names[j]}")
            elif not memory.same_place(result, argument):
                said.append(f"result {i} is a part of {names[j]} and not {names[j]} itself")
        said += [
            f"results {i} and {k} share memory" for k in range(i + 1, len(outputs)) if memory.share(result, outputs[k])
        ]
    return said
