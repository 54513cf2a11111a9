"""Predicate: the same verdict on real and on fake tensors, and never one that depends on the number of tokens.

Dimensions that differ between two `num_tokens` of the op's generator are made unbacked, so that a predicate that
branches on one meets a size that nobody knows; and it is asked about several numbers of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from vllm_ir_testkit import batch
from vllm_ir_testkit.cases import Case
from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "predicate"
SENTENCE: Final = "the predicate says the same of real and fake tensors and looks at no batch size"

TOKENS: Final = (0, 1, 2, 7, 16, 17, 129)
"""Numbers of tokens that a predicate is asked about."""

_RAISED: Final = "raised "
_SYMBOL: Final = "returned a SymBool, whose value hangs on that size"


def check(subject: Subject, notes: Notes) -> None:
    """Compare verdicts on real, fake and unbacked tensors, and over numbers of tokens."""
    if subject.impl.predicate is None:
        notes.skip("there is no supports_args: it takes every call")
        return
    for case, args in [*((c, subject.build(c)) for c in subject.legal()), *subject.unusual()]:
        real = verdict(subject, args)
        if real.startswith(_RAISED):
            continue
        notes.tried()
        fake = verdict(subject, faked(args))
        if fake != real:
            notes.fault(case, f"on real tensors it says {real}, on fake ones {fake}")
    for case in subject.legal():
        if case.plain and case.hidden is None and case.lead is None and case.tokens > 1:
            notes.tried()
            for what in batch_faults(subject, case):
                notes.fault(case, what)


def batch_faults(subject: Subject, case: Case) -> list[str]:
    """Return in words how the verdict on a plain case depends on the number of tokens."""
    real = verdict(subject, subject.build(case))
    free = verdict(subject, unbacked(subject, case))
    said = []
    if free != real and free.startswith((_RAISED, _SYMBOL)):
        said.append(
            f"it branches on the number of tokens, or on values: with a size that nobody knows it {free}."
            " Look at dtypes, trailing sizes and strides only"
        )
    elif free != real:
        said.append(f"it says {real}, and of a number of tokens that nobody knows {free}")
    answers = {tokens: verdict(subject, subject.build(Case(tokens=tokens, dtype=case.dtype))) for tokens in TOKENS}
    if len(set(answers.values())) > 1:
        said.append(f"its verdict depends on the number of tokens: {_grouped(answers)}")
    return said


def verdict(subject: Subject, args: tuple[Any, ...]) -> str:
    """Return a predicate's answer in words; what it raises begins with "raised"."""
    try:
        answer: Any = subject.impl.supports_args(*args)
        said = bool(answer) if not isinstance(answer, torch.SymBool) else None
    except Exception as error:  # noqa: BLE001 - what a predicate raises is a part of the answer
        return f"{_RAISED}{in_words(error)}"
    if said is None:
        return _SYMBOL
    return "accepted" if said else f"refused ({answer})"


def faked(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with fake tensors of the same sizes and strides."""
    mode = FakeTensorMode()
    return tuple(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args)


def unbacked(subject: Subject, case: Case) -> tuple[Any, ...]:
    """Return the arguments of a plain case with every batch dimension of a size that nobody knows."""
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    args = subject.build(case)
    dims = {(d.argument, d.dim): d for d in batch.of_inputs(subject.op, case.keywords(subject.op))}
    with mode:
        tokens = environment.create_unbacked_symint()
        # The call exists for any number of tokens; only that it is a size is known.
        torch._check(tokens >= 0)  # noqa: SLF001 - documented by torch under this name
        made = []
        for i, x in enumerate(args):
            if not isinstance(x, torch.Tensor):
                made.append(x)
                continue
            shape = [dims[i, d].size(tokens) if (i, d) in dims else size for d, size in enumerate(x.shape)]
            made.append(torch.empty(shape, dtype=x.dtype, device=x.device))
    return tuple(made)


def _grouped(answers: dict[int, str]) -> str:
    """Return which numbers of tokens get which answer."""
    groups: dict[str, list[int]] = {}
    for tokens, answer in answers.items():
        groups.setdefault(answer, []).append(tokens)
    return "; ".join(f"{', '.join(map(str, numbers))}: {answer}" for answer, numbers in groups.items())
