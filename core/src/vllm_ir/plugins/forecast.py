"""Which kernel an op would run, as far as files tell: nothing is imported, so predicates are not asked.

The order follows from the same layers as at run time; how it is shown is left to the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import NoParts, ProviderLacksOp, UnknownOp, UnknownProvider, UnusableProvider
from vllm_ir.landscape import Landscape
from vllm_ir.names import NATIVE, RESERVED, UNFUSED
from vllm_ir.orders import NO_PARTS, nobody_for
from vllm_ir.plugins.defaults import Standing, of_distributions
from vllm_ir.plugins.fitting import foreign
from vllm_ir.priority import Layer, merge
from vllm_ir.verdict import UNLISTED, Explanation, Verdict, not_reached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vllm_ir.errors import ConfigurationError
    from vllm_ir.plugins.static import Survey
    from vllm_ir.policy import Policy
    from vllm_ir.preferences import Preferences
    from vllm_ir.priority import Entry

UNASKED: Final = "as far as files tell; the arguments are judged at run time"
"""What is said of a provider whose predicate has not been asked."""

AT_RUN_TIME: Final = "a hook decides at run time whether a list names it"
"""The reason of a provider that no list names as far as files tell, and that its distribution may still put in one."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What files tell of one op's selection.

    Attributes:
        explanation: every candidate in order with the layer that put it there.
        doubts: what only loading can tell.
        problem: the error that a run would stop with, or None.
    """

    explanation: Explanation
    doubts: tuple[str, ...] = ()
    problem: ConfigurationError | None = None


def declared_ops(found: Survey) -> dict[str, str | None]:
    """Return the ops that any manifest names, each with the distribution that declares it, None where none does."""
    ops: dict[str, str | None] = {}
    for record in found.distributions:
        for provider in record.manifest.providers.values() if record.manifest else ():
            for op in provider.ops:
                ops[op] = record.name if provider.name == NATIVE else ops.get(op)
        for op in record.manifest.adds_ops if record.manifest else ():
            ops[op] = ops.get(op) or record.name
    return ops


def forecast(
    op: str, found: Survey, preferences: Preferences, *, compiling: bool = False, tensors: str | None = None
) -> Forecast:
    """Return what files tell of an op's selection.

    Args:
        op: its name.
        found: what is installed, judged for a platform.
        preferences: what users asked for: variables, the settings file, the command line.
        compiling: whether the answer is for a graph that Inductor compiles.
        tensors: the torch device type that a call's tensors are taken to be on, so that who takes others refuses it;
            None tells who may stand in the order, whatever a call brings.

    Raises:
        UnknownOp: the op is in no manifest.
        MalformedPriority: a list cannot be read.
    """
    known = tuple(declared_ops(found))
    if op not in known:
        raise UnknownOp(op=op, known=known)
    orders = of_distributions(found.distributions, found.platform, compiling=compiling).orders
    landscape = Landscape(platform=found.platform, provider_defaults={compiling: orders})
    entries = merge(preferences.wishes(op, landscape, compiling=compiling)).entries
    judge = _Judge(
        op,
        found,
        Standing.of(found.distributions),
        preferences.policy,
        tensors,
        lambda part: forecast(part, found, preferences, compiling=compiling).explanation,
    )
    problems: list[ConfigurationError] = list(found.conflicts)
    problems += [
        UnknownOp(op=name, known=known, layer=layer) for name, layer in preferences.named_ops() if name not in known
    ]
    problems += [problem for entry in entries if (problem := judge.problem(entry)) is not None]
    # What was typed comes first: a run reads it before it loads anything.
    problems.sort(key=lambda problem: getattr(problem, "layer", None) != Layer.COMMAND_LINE.label)
    explanation = Explanation(op, compiling, judge.verdicts(entries))
    doubts = (*_doubts(op, found), *judge.doubts(entries))
    return Forecast(explanation, doubts, problems[0] if problems else None)


def _doubts(op: str, found: Survey) -> Iterator[str]:
    """Yield a sentence for each thing about an op that files cannot tell."""
    platform = found.platform
    there = "on the machine itself" if platform.named else "here"
    for record in found.distributions:
        if record.failure or not record.manifest:
            continue
        mine = [each for each in record.providers if each.usable and op in each.ops]
        if mine and record.manifest.defaults_at_run_time:
            yield f"{record.name} decides its default order at run time; ask {there} without --static to see it."
        brings = record.manifest.platform
        if brings and platform.name == brings:
            yield f"{record.name} brings platform {brings!r}; only its code tells in which order it wants providers."
        elif brings and not platform.named:
            yield (
                f"{record.name} brings platform {brings!r}; only loading tells whether this machine"
                " is one, and in which order it wants providers."
            )
        yield from (f"{each.name}: {each.note}" for each in mine if each.note and platform.named)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges candidates of one op.

    Attributes:
        op: its name.
        found: what is installed.
        standing: who can stand in an order.
        policy: who may run what.
        tensors: the torch device type of a call's tensors; None asks about no call.
        ask: returns the verdicts on another op, for parts.
    """

    op: str
    found: Survey
    standing: Standing
    policy: Policy
    tensors: str | None
    ask: Callable[[str], Explanation]

    def refuse(self, provider: str) -> str | None:
        """Return why a provider cannot run the op, or None where it may."""
        if provider == UNFUSED:
            return NO_PARTS if self.partless else self._refuse_parts()
        reason = self.standing.refuse(provider, self.op)
        if reason is not None:
            return reason
        record = self.standing.providers.get(provider)
        said = record.manifest.ops.get(self.op) if record and record.manifest else None
        return self.policy.refuse_variant(batch_invariant=bool(said and said.batch_invariant))

    def _refuse_parts(self) -> str | None:
        """Return why the op's parts cannot all run, as a run has it, or None where they may or files do not name them.

        Native takes every call of a part, so only a rule that refuses native leaves a part without anybody.
        """
        for part in self._parts() if self.policy.batch_invariant else ():
            listed = [verdict for verdict in self.ask(part).verdicts if verdict.layer]
            if not any(verdict.accepted for verdict in listed):
                return nobody_for(part, [(verdict.provider, str(verdict.reason)) for verdict in listed])
        return None

    def _parts(self) -> tuple[str, ...]:
        """Return what the op is made of; empty where files do not tell."""
        record = self.standing.providers.get(UNFUSED)
        said = record.manifest.ops.get(self.op) if record and record.manifest else None
        return said.parts if said else ()

    @property
    def partless(self) -> bool:
        """Whether the op is one of the core's and has no parts; of others' ops only loading tells."""
        own = self.standing.providers.get(NATIVE), self.standing.providers.get(UNFUSED)
        native, unfused = (() if record is None else record.ops for record in own)
        return self.op in native and self.op not in unfused

    def _known(self) -> Iterator[str]:
        """Yield the providers that have the op, or may have it for all that files tell."""
        for name, record in self.standing.providers.items():
            untold = record.manifest is None if name not in RESERVED else not self.partless
            if self.op in record.ops or untold:
                yield name

    def hand_on(self, provider: str) -> str | None:
        """Return why a provider that may run the op is not given the call, or None where it may be."""
        record = self.standing.providers.get(provider)
        if self.tensors is None or provider in RESERVED or record is None or record.manifest is None:
            return None
        return foreign(record.manifest.platforms_of(self.op), self.found.platform, self.tensors)

    def verdicts(self, entries: Sequence[Entry]) -> tuple[Verdict, ...]:
        """Return the verdict on every place of the order, and on every provider of the op that has none."""
        verdicts: list[Verdict] = []
        taken: str | None = None
        stopped: str | None = None
        for entry in entries:
            reason = self.refuse(entry.provider)
            handed_on = self.hand_on(entry.provider) if reason is None else None
            if reason or handed_on:
                verdicts.append(Verdict(entry.provider, entry.source, accepted=False, reason=reason or handed_on))
                if handed_on and entry.required and self.policy.strict and taken is None:
                    stopped = stopped or entry.provider
            elif stopped is not None:
                reason = not_reached(stopped=stopped)
                verdicts.append(Verdict(entry.provider, entry.source, accepted=True, reason=reason))
            elif taken in RESERVED:
                reason = not_reached(taken=taken)
                verdicts.append(Verdict(entry.provider, entry.source, accepted=True, reason=reason))
            else:
                unasked = None if entry.provider in RESERVED else UNASKED
                first = taken is None
                verdicts.append(Verdict(entry.provider, entry.source, accepted=True, reason=unasked, selected=first))
                taken = entry.provider
        named = {entry.provider for entry in entries}
        for distribution in self.found.distributions:
            at_run_time = distribution.manifest is not None and distribution.manifest.defaults_at_run_time
            for record in distribution.providers:
                if record.name not in named and record.manifest and self.op in record.manifest.ops:
                    named.add(record.name)
                    unlisted = (self.hand_on(record.name) or AT_RUN_TIME) if at_run_time else UNLISTED
                    reason = self.refuse(record.name) or unlisted
                    verdicts.append(Verdict(record.name, "", accepted=False, reason=reason))
        return tuple(verdicts)

    def doubts(self, entries: Sequence[Entry]) -> Iterator[str]:
        """Yield what files cannot tell of an op that somebody wants to run unfused."""
        if self.partless or all(entry.provider != UNFUSED for entry in entries):
            return
        record = self.standing.providers.get(UNFUSED)
        if record is None or self.op not in record.ops:
            yield f"{UNFUSED}: only loading tells whether {self.op} has parts."
        if self.policy.batch_invariant and not self._parts():
            yield f"{UNFUSED}: only loading tells whether each part has somebody who is batch-invariant."

    def problem(self, entry: Entry) -> ConfigurationError | None:
        """Return the error that a run would stop with, for a place that a user asked for and that cannot run."""
        reason = self.refuse(entry.provider)
        if reason is None or not entry.required:
            return None
        provider, layer, record = entry.provider, entry.source, self.standing.providers.get(entry.provider)
        if provider == UNFUSED and self.partless:
            return NoParts(op=self.op, has=() if record is None else record.ops, layer=layer)
        if record is None and provider != UNFUSED:
            return UnknownProvider(op=self.op, provider=provider, known=tuple(self._known()), layer=layer)
        if record is not None and record.failure is None and record.manifest and self.op not in record.manifest.ops:
            return ProviderLacksOp(op=self.op, provider=provider, has=record.ops, layer=layer)
        return UnusableProvider(op=self.op, provider=provider, reason=reason, layer=layer)
