"""Batch invariance, where declared: a row alone has the bits that it has in any batch, at any place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_ir_testkit import batch
from vllm_ir_testkit.cases import Case
from vllm_ir_testkit.distance import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "batch_invariance"
SENTENCE: Final = "where declared, a row's bits depend on no other row and on no batch size"

SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33, 64, 100)
"""Batch sizes that a row is put into."""

BATCHES: Final = ((None, 257), (576, 65), (4096, 65))
"""Hidden sizes, None for the generator's own, and the tokens of the whole batch."""


def check(subject: Subject, notes: Notes) -> None:
    """Run parts of one batch, at its beginning, its end and in its middle, and compare with the whole."""
    if not subject.impl.batch_invariant:
        notes.skip("not declared batch-invariant")
        return
    for plain in subject.plain():
        for hidden, tokens in BATCHES:
            case = Case(tokens=tokens, dtype=plain.dtype, hidden=hidden)
            if subject.take(case) is None:
                continue
            for name, run in subject.ways.items():
                notes.tried()
                what = next(variance(subject, case, run), None)
                if what is not None:
                    notes.fault(case, what if name == "default" else f"{name}: {what}")


def variance(subject: Subject, case: Case, run: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Iterator[str]:
    """Yield in words where a row depends on its batch, if it is run in one way."""
    keywords = case.keywords(subject.op)
    inputs, outputs = batch.of_inputs(subject.op, keywords), batch.of_outputs(subject.op, keywords)
    whole = run(subject.build(case))
    args = subject.build(case)
    for size in (each for each in SIZES if each < case.tokens):
        for start in sorted({0, case.tokens - size, (case.tokens - size) // 3}):
            part = run(_cut(args, inputs, start, size))
            wanted = _cut(whole, outputs, start, size)
            different = [i for i, (a, b) in enumerate(zip(part, wanted, strict=True)) if compare(a, b).differing]
            if different:
                yield (
                    f"{size} rows from row {start} on have other bits in result {different[0]} than in a batch of"
                    f" {case.tokens}"
                )


def _cut(values: tuple[Any, ...], dims: tuple[batch.BatchDim, ...], start: int, size: int) -> tuple[Any, ...]:
    """Return copies of the rows of some tokens; what does not grow with the tokens stays whole."""
    cut = list(values)
    for each in dims:
        narrowed = cut[each.argument].narrow(each.dim, start * each.factor, size * each.factor)
        cut[each.argument] = narrowed.clone(memory_format=torch.contiguous_format)
    return tuple(cut)
