"""What the ops did while a model answered: a difference of two reports, and the sentences that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import vllm_ir
from vllm_ir import runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir_host_transformers.findings import Replacement


@dataclass(frozen=True, slots=True)
class OpUse:
    """What one op did.

    Attributes:
        op: the op's name.
        priority: provider and who put it into the order, in order.
        named: the providers among them that a user named.
        calls: by provider.
        refusals: provider, reason, how often.
        places: how many places of the model run on the op.
    """

    op: str
    priority: tuple[tuple[str, str], ...]
    named: tuple[str, ...]
    calls: Mapping[str, int]
    refusals: tuple[tuple[str, str, int], ...]
    places: int

    @property
    def total(self) -> int:
        """Calls by all providers."""
        return sum(self.calls.values())


@dataclass(frozen=True, slots=True)
class Usage:
    """What all ops did.

    Attributes:
        ops: by name, those that a model runs on or that were called.
        forward_passes: how often the model ran.
        norms: how many norms of the model run on an IR op.
    """

    ops: Mapping[str, OpUse]
    forward_passes: int
    norms: int


def count_calls() -> None:
    """Let every op count its calls from now on, as VLLM_IR_COUNTERS=1 does for a process that starts with it."""
    runtime.current().count_calls()


class Meter:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._before = vllm_ir.report()

    def read(self, replacement: Replacement, forward_passes: int) -> Usage:
        """Return what the ops did since."""
        places = replacement.ops
        ops: dict[str, OpUse] = {}
        for name, now in vllm_ir.report().ops.items():
            then = self._before.ops.get(name)
            earlier: Mapping[str, int] = then.calls if then else {}
            said = {(provider, why): count for provider, why, count in (then.refusals if then else ())}
            calls = {provider: count - earlier.get(provider, 0) for provider, count in now.calls.items()}
            refusals = [(provider, why, count - said.get((provider, why), 0)) for provider, why, count in now.refusals]
            ops[name] = OpUse(
                op=name,
                priority=tuple((entry.provider, entry.source) for entry in now.priority),
                named=tuple(entry.provider for entry in now.priority if entry.layer.named),
                calls={provider: count for provider, count in calls.items() if count},
                refusals=tuple(refusal for refusal in refusals if refusal[2]),
                places=places.get(name, 0),
            )
        used = {name: op for name, op in ops.items() if op.total or op.places}
        return Usage(used, forward_passes, replacement.norms)


def per_pass(calls: int, passes: int) -> float | int:
    """Return calls per forward pass, as a whole number where it is one."""
    if not passes:
        return 0
    return calls // passes if calls % passes == 0 else round(calls / passes, 2)


def norm_sentence(usage: Usage) -> str | None:
    """Return why `rms_norm` is called less often than there are norms, or None when it is not."""
    alone, fused = (usage.ops.get(name) for name in ("rms_norm", "fused_add_rms_norm"))
    if fused is None or not fused.total or not usage.forward_passes:
        return None
    ours = per_pass(alone.total if alone else 0, usage.forward_passes)
    return norms_apart(ours, per_pass(fused.total, usage.forward_passes))


def norms_apart(ours: float, theirs: float) -> str | None:
    """Return which op runs how many norms of a forward pass; None when `rms_norm` runs all."""
    if not theirs:
        return None
    total = ours + theirs
    return (
        f"rms_norm takes {ours} of {total} norms per forward pass; the other {theirs} run in fused_add_rms_norm"
        f" (--no-fuse-residual puts all {total} on rms_norm)"
    )


def unmet(usage: Usage) -> tuple[str, ...]:
    """Return a sentence for every provider that a user named first for an op and that ran none of its calls."""
    sentences = []
    for op in usage.ops.values():
        first = op.named[0] if op.named else None
        if first is not None and op.total and first not in op.calls:
            sentences.append(f"{first} was named for {op.op} and ran none of its {op.total} calls")
    return tuple(sentences)


def as_json(usage: Usage) -> dict[str, Any]:
    """Return what the ops did as JSON values."""
    return {
        op.op: {
            "priority": [{"provider": provider, "layer": layer} for provider, layer in op.priority],
            "calls": dict(op.calls),
            "calls_per_forward_pass": {
                provider: per_pass(count, usage.forward_passes) for provider, count in op.calls.items()
            },
            "refusals": [{"provider": who, "reason": why, "count": count} for who, why, count in op.refusals],
            "places": op.places,
        }
        for op in usage.ops.values()
    }
