"""Layout: results are contiguous unless the op says otherwise; shape, dtype, strides and device are the fake's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_ir_testkit.batch import results
from vllm_ir_testkit.searching import search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "layout"
SENTENCE: Final = "results lie as the fake's do, contiguous unless the op says otherwise, with its shape and dtype"


def check(subject: Subject, notes: Notes) -> None:
    """Compare the results of every accepted call with what the op's fake says of them."""
    for case, args, outputs in subject.runs(notes):
        what = mismatch(subject, args, outputs)
        if what is not None:
            notes.fault(case, what)

    def demand(_case: Case, args: tuple[Any, ...]) -> str | None:
        """Return how the results of one drawn call lie otherwise than the fake says."""
        outputs = subject.attempt(args)
        return None if outputs is None else mismatch(subject, args, outputs)

    search(subject, notes, demand)


def mismatch(subject: Subject, args: Sequence[Any], outputs: Sequence[Tensor]) -> str | None:
    """Return in words how results lie otherwise than the fake says, or None."""
    fakes = results(subject.op.run_fake(*(_on_meta(x) for x in args)))
    if len(fakes) != len(outputs):
        return f"{len(outputs)} results, the fake has {len(fakes)}"
    said = []
    for i, (got, fake) in enumerate(zip(outputs, fakes, strict=True)):
        seen, wanted = _facts(got), _facts(fake)
        if got.device.type != subject.device.type:
            said.append(f"result {i} is on {got.device}, the inputs are on {subject.device}")
        said += [
            f"result {i}: {key} {seen[key]}, the fake's is {wanted[key]}" for key in seen if seen[key] != wanted[key]
        ]
        if not got.is_contiguous() and fake.is_contiguous():
            said.append(f"result {i} is not contiguous")
    return "; ".join(said) or None


def _on_meta(x: Any) -> Any:
    """Return a tensor of the same sizes and strides that holds nothing, and anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _facts(x: Tensor) -> dict[str, object]:
    """Return what has to agree; strides count only where there is more than one element to step over."""
    strides = tuple(step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1) if x.numel() else ()
    return {"shape": tuple(x.shape), "dtype": x.dtype, "strides": strides}
