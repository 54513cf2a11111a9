"""What came of checking: findings, one outcome per op and check, and the report of a provider.

How they look on a terminal or in a file is left to `rendering`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PASSED: Final = "passed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
KNOWN: Final = "known failure"
"""States of an outcome; a known failure fails nobody as long as it fails."""

MOST: Final = 50
"""Findings that one outcome keeps; the others are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault in one case.

    Attributes:
        case: the case in words.
        what: what is wrong, one sentence.
        known: why it is known to fail; None where nobody said so.
    """

    case: str
    what: str
    known: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found for one op.

    Attributes:
        op: the op's name.
        check: the check's name.
        state: one of the states above.
        reason: why it was skipped, in a sentence; None otherwise.
        findings: what is wrong, at most `MOST`.
        more: how many findings were left out.
        cases: how many cases were judged.
        figures: numbers worth keeping, by name.
        seconds: how long it took.
    """

    op: str
    check: str
    state: str
    reason: str | None = None
    findings: tuple[Finding, ...] = ()
    more: int = 0
    cases: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "op": self.op,
            "check": self.check,
            "state": self.state,
            "reason": self.reason,
            "cases": self.cases,
            "findings": [{"case": each.case, "what": each.what, "known": each.known} for each in self.findings],
            "more_findings": self.more,
            "figures": dict(self.figures),
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What checking one provider came to.

    Attributes:
        provider: its name.
        distribution: the distribution that brings it; None for one that a program registered.
        version: of the distribution.
        platform: the machine, "cpu" or "cuda" with the device's name.
        torch: torch's version.
        outcomes: one per op and check, in order.
        refused: ops that it does not run on this machine, with the reason.
        seconds: how long it all took.
    """

    provider: str
    distribution: str | None
    version: str | None
    platform: str
    torch: str
    outcomes: tuple[Outcome, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The outcomes that somebody has to mend."""
        return tuple(each for each in self.outcomes if each.state == FAILED)

    @property
    def clean(self) -> bool:
        """Whether something was checked and nothing failed."""
        return any(each.state in {PASSED, KNOWN} for each in self.outcomes) and not self.failed

    @property
    def exit_code(self) -> int:
        """0 clean, 1 a finding, 3 nothing to check."""
        if self.failed:
            return 1
        return 0 if self.clean else 3

    def count(self, state: str) -> int:
        """Return how many outcomes are in a state."""
        return sum(each.state == state for each in self.outcomes)

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "provider": self.provider,
            "distribution": self.distribution,
            "distribution_version": self.version,
            "platform": self.platform,
            "torch": self.torch,
            "clean": self.clean,
            "counts": {state: self.count(state) for state in (PASSED, FAILED, KNOWN, SKIPPED)},
            "refused": dict(self.refused),
            "outcomes": [each.describe() for each in self.outcomes],
            "seconds": round(self.seconds, 2),
        }
