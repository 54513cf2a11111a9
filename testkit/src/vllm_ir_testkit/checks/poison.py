"""Poison: fresh memory is filled before the kernel gets it, and none of the filling shows in a result.

Torch fills what `torch.empty` and its relatives return with NaN, or with the largest integer; memory that a library
takes from elsewhere is out of reach.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils.deterministic

from vllm_ir_testkit.distance import compare

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "poison"
WIDEST: Final = 1024
"""Hidden size above which a case is left out: rows twice as long have no other ends."""

SENTENCE: Final = "no element of a result is what happened to be in fresh memory"


def check(subject: Subject, notes: Notes) -> None:
    """Run every accepted call with finite values in poisoned memory, and compare with native's NaNs and with itself."""
    finite = (case for case in subject.legal() if case.fill not in {"nan", "infinite"})
    cases = [case for case in finite if (case.hidden or 0) <= WIDEST]
    for case, args in subject.accepted(cases):
        wanted = subject.native(args)
        for name, run in subject.ways.items():
            with contextlib.suppress(Exception):  # the refusal check reports what raises
                clean = run(subject.build(case))
                notes.tried()
                with poisoned():
                    dirty = run(subject.build(case))
                what = traces(clean, dirty, wanted)
                if what is not None:
                    notes.fault(case, what if name == "default" else f"{name}: {what}")


def traces(clean: Sequence[Tensor], dirty: Sequence[Tensor], wanted: Sequence[Tensor]) -> str | None:
    """Return in words where a result depends on what fresh memory held, or None.

    Args:
        clean: results in memory as it came.
        dirty: results in poisoned memory.
        wanted: native's.
    """
    for i, (a, b, native) in enumerate(zip(clean, dirty, wanted, strict=False)):
        if a.shape != b.shape or a.dtype != b.dtype or not a.numel():
            continue
        comparison = compare(b, a)
        if comparison.differing:
            return (
                f"result {i}: {comparison.differing} of {comparison.elements} elements change with what fresh memory"
                " held before"
            )
        if a.is_floating_point() and bool((b.isnan() & ~native.isnan()).any()):
            return f"result {i} holds NaN from fresh memory"
    return None


@contextlib.contextmanager
def poisoned() -> Iterator[None]:
    """Let torch fill fresh memory while open."""
    deterministic: Any = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        deterministic.fill_uninitialized_memory,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        deterministic.fill_uninitialized_memory = True
        try:
            yield
        finally:
            deterministic.fill_uninitialized_memory = before[2]
            torch.use_deterministic_algorithms(mode=before[0], warn_only=before[1])
