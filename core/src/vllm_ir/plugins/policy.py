"""The operator's lists held against what is installed: a name that nothing has is a mistake, or looks like one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import UnknownAllowed, did_you_mean
from vllm_ir.names import NATIVE, RESERVED, normalise
from vllm_ir.policy import ALL, ALLOW, DENY, Policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm_ir.policy import Rule

__all__ = ["ALL", "ALLOW", "DENY", "Policy", "check", "doubts"]


def check(policy: Policy, known: Iterable[str]) -> None:
    """Refuse an allow list of the variables with a name that nothing here has.

    A file may allow what other machines of a fleet have, so there an unknown name is only doubted.

    Args:
        policy: the operator's lists.
        known: names of all installed providers and of the distributions that bring them.

    Raises:
        UnknownAllowed: a name is neither.
    """
    names = list(dict.fromkeys(known))
    legal = _legal(names)
    for source in policy.sources:
        for rule in (source.allow or ()) if source.file is None else ():
            if rule.name not in legal:
                raise UnknownAllowed(variable=ALLOW, name=rule.text, known=names)


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
    elif rule.name not in legal and (suggestion := did_you_mean(written, names)):
        yield f"{place} names {written!r}, which nothing here has.{suggestion}"
    if rule.op is not None and rule.op not in ops and (suggestion := did_you_mean(rule.op, ops)):
        yield f"{place} names {rule.text!r}, and no installed provider has an op {rule.op!r}.{suggestion}"


def _legal(names: Iterable[str]) -> set[str]:
    """Return the names that mean something here."""
    return {normalise(name) for name in names} | {ALL, *RESERVED}
