"""Layout: results are contiguous, and shape, dtype, strides and device are those of the op's fake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch._subclasses.fake_tensor import FakeTensorMode

from vllm_ir_testkit.batch import results
from vllm_ir_testkit.searching import search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "layout"
SENTENCE: Final = "results are contiguous, with shape, dtype, strides and device of the fake's"


def check(subject: Subject, notes: Notes) -> None:
    """Compare the results of every accepted call with what the op's fake says of them."""
    for case, args, outputs in subject.runs(notes):
        what = mismatch(subject, args, outputs)
        if what is not None:
            notes.fault(case, what)

    def demand(_case: Case, args: tuple[Any, ...]) -> str | None:
        """Return how the results of one drawn call lie otherwise than the fake says."""
        try:
            outputs = subject.run(args)
        except Exception:  # noqa: BLE001 - the refusal check reports what raises
            return None
        return mismatch(subject, args, outputs)

    search(subject, notes, demand)


def mismatch(subject: Subject, args: Sequence[Any], outputs: Sequence[Tensor]) -> str | None:
    """Return in words how results lie otherwise than the fake says, or None."""
    mode = FakeTensorMode()
    faked = [mode.from_tensor(x) if hasattr(x, "untyped_storage") else x for x in args]
    with mode:
        fakes = results(subject.op.run_fake(*faked))
    if len(fakes) != len(outputs):
        return f"{len(outputs)} results, the fake has {len(fakes)}"
    said = []
    for i, (got, fake) in enumerate(zip(outputs, fakes, strict=True)):
        seen, wanted = _facts(got), _facts(fake)
        said += [
            f"result {i}: {key} {seen[key]}, the fake's is {wanted[key]}" for key in seen if seen[key] != wanted[key]
        ]
        if not got.is_contiguous():
            said.append(f"result {i} is not contiguous")
    return "; ".join(said) or None


def _facts(x: Tensor) -> dict[str, object]:
    """Return what has to agree; strides count only where there is more than one element to step over."""
    strides = tuple(step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1) if x.numel() else ()
    return {"shape": tuple(x.shape), "dtype": x.dtype, "strides": strides, "device": x.device}
