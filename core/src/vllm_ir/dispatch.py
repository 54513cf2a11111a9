"""Who runs a call: one predicate for every candidate, asked by `select` and by `explain` alike.

Where the order came from, and what a refusal leads to, is known elsewhere; nothing is logged here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import NoImplementation, RefusedArguments
from vllm_ir.verdict import NO_REASON, UNLISTED, Explanation, Unsupported, Verdict, not_reached

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.priority import Entry


@dataclass(frozen=True, slots=True)
class BrokenPredicate(Unsupported):
    """A refusal because the predicate gave no verdict: it raised, or returned something else."""

    # Without this a frozen slotted dataclass loses the base's truth value.
    __bool__ = Unsupported.__bool__


@dataclass(frozen=True, slots=True)
class GuardingPredicate(BrokenPredicate):
    """A refusal because the answer depends on what a graph leaves open, and would hold for one value of it alone.

    Attributes:
        question: what was asked, with torch's names of sizes in it.
    """

    question: str = ""

    __bool__ = Unsupported.__bool__


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place of an order, and what stands in it.

    Attributes:
        entry: the place.
        impl: the implementation, or None when there is none here.
        refusal: why it may run no call at all; None when it may run some.
    """

    entry: Entry
    impl: IrOpImpl | None
    refusal: Unsupported | None

    @property
    def unconditional(self) -> bool:
        """Whether it takes every call."""
        return self.impl is not None and self.refusal is None and self.impl.supports_all_args


def read_answer(answer: object) -> Unsupported | None:
    """Return the refusal that a predicate's answer means, or None when it accepts."""
    if answer is True:
        return None
    if answer is False:
        return Unsupported(NO_REASON)
    if isinstance(answer, Unsupported):
        return answer
    name = type(answer).__name__
    if name == "SymBool":
        return GuardingPredicate(
            "supports_args returned a SymBool: it looks at a size that changes while compiling, such as the number of"
            " tokens; look at trailing sizes, dtypes and strides only",
            str(answer),
        )
    return BrokenPredicate(f"supports_args returned {name} {answer!r}, wanted a bool or Unsupported(sentence)")


def read_exception(error: Exception) -> BrokenPredicate:
    """Return the refusal that an exception out of a predicate means."""
    if "DataDependent" in type(error).__name__:
        return GuardingPredicate(
            "supports_args branches on a size or value that is not known while compiling"
            f" ({type(error).__name__}); look at trailing sizes, dtypes and strides only",
            str(getattr(error, "cond", "")),
        )
    text = " ".join(str(error).split())
    if "GuardError" in type(error).__name__:
        return GuardingPredicate(text, text)
    return BrokenPredicate(f"supports_args raised {type(error).__name__}: {text}")


def judge(impl: IrOpImpl, args: Sequence[Any]) -> Unsupported | None:
    """Return why an implementation refuses a call, or None when it takes it.

    Args:
        impl: the implementation.
        args: all arguments by position; real or fake tensors.
    """
    refusal = foreign(impl, args)
    if refusal is not None:
        return refusal
    if impl.predicate is None:
        return None
    try:
        answer = impl.predicate(*args)
    except Exception as error:  # noqa: BLE001 - whatever a predicate raises is a refusal with that reason
        return read_exception(error)
    return read_answer(answer)


def foreign(impl: IrOpImpl, args: Sequence[Any]) -> Unsupported | None:
    """Return the refusal of a call with a tensor on a device that the implementation must not be given."""
    if impl.devices is None:
        return None
    for value in args:
        device = getattr(value, "device", None)
        if device is not None and device.type not in impl.devices:
            return Unsupported(f"its kernels take {_words(impl.devices)} tensors, got a {device.type} tensor")
    return None


def select(
    op: str, candidates: Sequence[Candidate], args: Sequence[Any], *, batch_invariant: bool, strict: bool = False
) -> IrOpImpl:
    """Return the first candidate that takes the call.

    Args:
        op: the op's name, for the error.
        candidates: in order.
        args: all arguments by position.
        batch_invariant: whether only batch-invariant implementations were admitted, for the error.
        strict: whether a refusal by a candidate that a user named raises.

    Raises:
        NoImplementation: every candidate refuses.
        RefusedArguments: strict, and a candidate that a user named refuses.
    """
    refusals: list[tuple[str, str]] = []
    for candidate in candidates:
        refusal = candidate.refusal
        if candidate.impl is not None and refusal is None:
            refusal = judge(candidate.impl, args)
            if refusal is None:
                return candidate.impl
            if strict and candidate.entry.required:
                entry = candidate.entry
                raise RefusedArguments(op=op, provider=entry.provider, reason=str(refusal), layer=entry.source)
        refusals.append((candidate.entry.provider, str(refusal)))
    raise NoImplementation(op=op, refusals=refusals, batch_invariant=batch_invariant)


def explain(
    op: str,
    candidates: Sequence[Candidate],
    others: Sequence[tuple[str, Unsupported | None]],
    args: Sequence[Any] | None,
    *,
    compiling: bool,
    strict: bool = False,
) -> Explanation:
    """Return the verdict on every candidate, also on those behind the one that runs.

    Args:
        op: the op's name.
        candidates: in order.
        others: providers of the op that no list names, with what would refuse every call.
        args: all arguments by position; None judges only what holds for every call.
        compiling: whether the order is the one for graphs that Inductor compiles.
        strict: whether a refusal by a candidate that a user named raises, so that nothing behind it runs.
    """
    verdicts: list[Verdict] = []
    taken: str | None = None
    stopped: str | None = None
    for candidate in candidates:
        provider, source = candidate.entry.provider, candidate.entry.source
        refusal = candidate.refusal
        if candidate.impl is not None and refusal is None and args is not None:
            refusal = judge(candidate.impl, args)
        if refusal is not None:
            verdicts.append(Verdict(provider, source, accepted=False, reason=str(refusal)))
            if strict and candidate.entry.required and taken is None:
                stopped = stopped or provider
            continue
        if stopped is not None:
            verdicts.append(Verdict(provider, source, accepted=True, reason=not_reached(stopped=stopped)))
            continue
        if taken is not None:
            verdicts.append(Verdict(provider, source, accepted=True, reason=not_reached(taken=taken)))
            continue
        # Without arguments a predicate has not been asked, so it may still hand the call on.
        pending = args is None and candidate.impl is not None and not candidate.impl.supports_all_args
        taken = provider
        reason = "for the arguments that its supports_args accepts" if pending else None
        verdicts.append(Verdict(provider, source, accepted=True, reason=reason, selected=True))
    for provider, refusal in others:
        verdicts.append(Verdict(provider, "", accepted=False, reason=UNLISTED if refusal is None else str(refusal)))
    return Explanation(op, compiling, tuple(verdicts))


def _words(devices: frozenset[str] | None) -> str:
    """Return device types joined by "or"."""
    return " or ".join(sorted(devices or ()))
