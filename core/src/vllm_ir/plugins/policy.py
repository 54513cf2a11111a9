"""The operator's lists held against what is installed: a name that nothing has is a mistake, or looks like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import UnknownAllowed, UnknownAllowedOp, did_you_mean, listed
from vllm_ir.names import NATIVE, RESERVED, normalise
from vllm_ir.policy import ALL, ALLOW, DENY, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vllm_ir.policy import Rule

__all__ = ["ALL", "ALLOW", "DENY", "Policy", "check", "doubts"]


def check(policy: Policy, known: Iterable[str], ops: Sequence[str] | None = None) -> None:
    """Refuse an allow list of the variables with a name that nothing here has.

    A file may allow what other machines of a fleet have, so there an unknown name is only doubted.

    Args:
        policy: the operator's lists.
        known: names of all installed providers and of the distributions that bring them.
        ops: names of all ops that a manifest names; None where they cannot all be known.

    Raises:
        UnknownAllowed: a name is neither.
        UnknownAllowedOp: an op is none of them. One for all providers may be the program's own, and is left alone.
    """
    names = list(dict.fromkeys(known))
    legal = _legal(names)
    for source in policy.sources:
        for rule in (source.allow or ()) if source.file is None else ():
            if rule.name not in legal:
                raise UnknownAllowed(variable=ALLOW, name=rule.text, known=names)
            if ops is not None:
                _check_op(rule, list(ops))


def _check_op(rule: Rule, ops: list[str]) -> None:
    """Refuse an allowed op that nothing here has; one of all providers may be the program's own and only near."""
    if rule.op is None or rule.op in ops or (rule.name == ALL and not did_you_mean(rule.op, ops)):
        return
    raise UnknownAllowedOp(variable=ALLOW, rule=rule.text, op=rule.op, known=ops)


def doubts(policy: Policy, known: Iterable[str], ops: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence for each entry that says nothing here and looks like a mistake.

    A list may well name what is installed elsewhere, so an unknown name alone is no mistake.

    Args:
        policy: the operator's lists.
        known: names of all installed providers and of the distributions that bring them.
        ops: names of all ops that a manifest names.
    """
    names, ops = list(dict.fromkeys(known)), list(ops)
    legal = _legal(names)
    return tuple(
        sentence
        for source in policy.sources
        for place, rule in source.rules
        for sentence in _doubts(place, rule, names, legal, ops)
    )


def _doubts(place: str, rule: Rule, names: list[str], legal: set[str], ops: list[str]) -> Iterator[str]:
    """Yield what is doubtful about one entry."""
    written = rule.text.partition(":")[0].strip()
    if rule.name in RESERVED and place == DENY:
        what = "what every op means" if rule.name == NATIVE else "an op's parts, each under its own rules,"
        yield f"{place} names {rule.text!r}, but {rule.name} is {what} and always stays."
    elif rule.name not in legal and rule.name in {normalise(op) for op in ops}:
        yield (
            f"{place} names {written!r}, which is an op and no provider, so it means nothing. Name a provider"
            f" (there are: {listed(names)}), or write '*:{written}' for that op of all."
        )
    elif rule.name not in legal and (suggestion := did_you_mean(written, names)):
        yield f"{place} names {written!r}, which nothing here has.{suggestion}"
    if rule.op is not None and rule.op not in ops and (suggestion := did_you_mean(rule.op, ops)):
        yield f"{place} names {rule.text!r}, and no installed provider has an op {rule.op!r}.{suggestion}"


def _legal(names: Iterable[str]) -> set[str]:
    """Return the names that mean something here."""
    return {normalise(name) for name in names} | {ALL, *RESERVED}
