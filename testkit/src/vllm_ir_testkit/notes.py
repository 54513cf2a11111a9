"""What a check writes down while it works; the engine makes an outcome of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm_ir_testkit.outcome import Finding


@dataclass(slots=True)
class Notes:
    """The notes of one check on one op.

    Attributes:
        findings: what is wrong.
        cases: how many cases were judged.
        reason: why nothing could be judged.
        figures: numbers worth keeping, by name.
    """

    findings: list[Finding] = field(default_factory=list)
    cases: int = 0
    reason: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)

    def tried(self) -> None:
        """Count a case that was judged."""
        self.cases += 1

    def fault(self, case: object, what: str) -> None:
        """Write down what is wrong with a case."""
        self.findings.append(Finding(str(case), what))

    def skip(self, reason: str) -> None:
        """Write down why there is nothing to judge."""
        self.reason = reason


def in_words(error: BaseException) -> str:
    """Return an exception as one line of at most some 300 characters."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:280] + '...' if len(text) > 280 else text}"  # noqa: PLR2004 - a line or two
