"""A refusal is a value with a reason, and so is the answer to "which kernel, and why".

Dispatch and explain both speak in these; who judges is `dispatch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vllm_ir.errors import BadValue

NO_REASON: Final = "supports_args returned False"
"""The reason of a predicate that gives none."""

UNLISTED: Final = "no priority list names it"
"""The reason of a provider that no layer put into the order."""

NOT_REACHED: Final = "not reached: "
"""How the reason begins of a candidate that may run and behind which nobody asks: who takes the call follows."""


def not_reached(*, taken: str | None = None, stopped: str | None = None) -> str:
    """Return the reason of a candidate that is not asked.

    Args:
        taken: the provider before it that takes the call.
        stopped: the provider before it that a user named and that refuses under strict mode; it goes before `taken`.
    """
    return NOT_REACHED + (f"strict mode raises where {stopped} refuses" if stopped else f"{taken} takes the call")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A falsy answer of a predicate that carries its reason.

    Args:
        reason: one sentence, or its part after "because": "needs float16 or bfloat16, got float32".

    Raises:
        BadValue: the reason is no text, or is blank.
    """

    reason: str

    def __post_init__(self) -> None:
        """Refuse a reason that tells nothing."""
        given: object = self.reason
        if not isinstance(given, str) or not given.strip():
            raise BadValue(who="Unsupported", field="reason", got=repr(given), wanted="a sentence")

    def __bool__(self) -> bool:
        """Return False: a refusal."""
        return False

    def __str__(self) -> str:
        """Return the reason."""
        return self.reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one candidate.

    Attributes:
        provider: the candidate.
        layer: the layer that put it into the list; empty when no layer did.
        accepted: whether it may run.
        reason: why not, or why it is not reached; None for an accepted candidate that is reached.
        selected: whether it is the one that runs.
    """

    provider: str
    layer: str
    accepted: bool
    reason: str | None = None
    selected: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate of an op in order, and the one that runs.

    Attributes:
        op: the op's name.
        compiling: whether the answer is for a graph that Inductor compiles.
        verdicts: the candidates in the order of the priority, those that no list names last.
        parts: where the op runs unfused, the same of each part that it calls, in order.
    """

    op: str
    compiling: bool
    verdicts: tuple[Verdict, ...]
    parts: tuple[Explanation, ...] = ()

    @property
    def selected(self) -> str | None:
        """The provider that runs, or None when every candidate refuses."""
        return next((verdict.provider for verdict in self.verdicts if verdict.selected), None)

    def __str__(self) -> str:
        """Return one line per candidate."""
        lines = [f"{self.op}{' (compiling)' if self.compiling else ''}: {self.selected or 'nothing may run'}"]
        for verdict in self.verdicts:
            mark = ">" if verdict.selected else " "
            why = f": {verdict.reason}" if verdict.reason else ""
            said = "accepted" if verdict.accepted else "refused"
            lines.append(f" {mark} {verdict.provider} [{verdict.layer or 'in no list'}] {said}{why}")
        lines += [f"   {line}" for part in self.parts for line in str(part).splitlines()]
        return "\n".join(lines)
