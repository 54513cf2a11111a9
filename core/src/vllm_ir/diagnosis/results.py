"""What came of running one provider, as a value: what its process told, and how that process ended."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.diagnosis.probe import DIFFERS, RAISES, REFUSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STARTING: Final = "starting"
DONE: Final = "done"
"""The first and the last step of a probe."""

ELSEWHERE: Final = "The traceback is in `vllm-ir list --load`"
HERE: Final = "The traceback is in this report"
"""Where somebody finds the traceback of what did not load, as its error says it, and as a report that has it does."""


@dataclass(frozen=True, slots=True)
class Target:
    """A provider to run.

    Attributes:
        provider: its name.
        distribution: the distribution that brings it.
        version: of the distribution.
        denied: what its process must not load: everything that it does not need.
    """

    provider: str
    distribution: str
    version: str
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of running one provider.

    Attributes:
        target: which.
        outcome: "runs", "refuses", "differs", "fails", "crashed", or "timed out".
        seconds: how long its process lived.
        step: what it did last.
        reason: in a sentence, what somebody has to mend; None for the first two outcomes.
        parts: for each op and dtype, and each warm-up: `what dtype outcome reason traceback`.
        traceback: of what it raised.
        output: the last lines that it printed, where it ended by itself or was ended.
    """

    target: Target
    outcome: str
    seconds: float
    step: str
    reason: str | None = None
    parts: tuple[Mapping[str, Any], ...] = ()
    traceback: str | None = None
    output: str = ""

    @property
    def fault(self) -> bool:
        """Whether somebody has to mend something."""
        return self.reason is not None

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "provider": self.target.provider,
            "distribution": self.target.distribution,
            "version": self.target.version,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 1),
            "step": self.step,
            "reason": self.reason,
            "parts": [dict(part) for part in self.parts],
            "traceback": self.traceback,
            "output": self.output,
        }


def judge(target: Target, facts: Sequence[Mapping[str, Any]], seconds: float) -> ProbeResult:
    """Return what came of a process that reached its end.

    Args:
        target: the provider.
        facts: what the process told, in order.
        seconds: how long it lived.
    """
    parts = parts_of(facts)
    failure = next((fact["failure"] for fact in facts if isinstance(fact.get("failure"), dict)), None)
    if failure is not None:
        trace = failure.get("traceback")
        reason = str(failure.get("reason")).replace(ELSEWHERE, HERE)
        return ProbeResult(target, "fails", seconds, "loading", reason, parts, trace)
    raised = [part for part in parts if part["outcome"] == RAISES]
    differing = [part for part in parts if part["outcome"] == DIFFERS]
    worst = [*raised, *differing]
    if not worst:
        ran = not parts or any(part["outcome"] != REFUSES for part in parts)
        return ProbeResult(target, "runs" if ran else "refuses", seconds, DONE, None, parts)
    first = worst[0]
    what = ", ".join(filter(None, [first["what"], first["dtype"]]))
    verb = "it raised" if raised else "it differs from native:"
    others = f" ({len(worst) - 1} more below)" if len(worst) > 1 else ""
    reason = f"{what}: {verb} {first['reason']}{others}"
    return ProbeResult(target, "fails" if raised else "differs", seconds, DONE, reason, parts, first["traceback"])


def parts_of(facts: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return what came of each part, of what a process told."""
    return tuple(fact["result"] for fact in facts if isinstance(fact.get("result"), dict))


def step_of(facts: Sequence[Mapping[str, Any]]) -> str:
    """Return what a process began last."""
    return next((str(fact["step"]) for fact in reversed(facts) if "step" in fact), STARTING)


def how_it_ended(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code} before it had done its work"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
