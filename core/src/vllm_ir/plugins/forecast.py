"""Which kernel an op would run, as far as files tell: nothing is imported, so predicates are not asked.

The order follows from the same layers as at run time; how it is shown is left to the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import ProviderLacksOp, UnknownOp, UnknownProvider, UnusableProvider
from vllm_ir.landscape import Landscape
from vllm_ir.names import NATIVE
from vllm_ir.orders import NOT_INVARIANT, defaults
from vllm_ir.plugins.defaults import Standing, of_distributions
from vllm_ir.priority import FLAG, Layer, Wish, merge, parse_text, read_providers
from vllm_ir.verdict import Explanation, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir.environment import Environment
    from vllm_ir.errors import ConfigurationError
    from vllm_ir.plugins.static import Survey
    from vllm_ir.priority import Entry
    from vllm_ir.settings import Settings

UNASKED: Final = "as far as files tell; the arguments are judged at run time"
"""What is said of a provider whose predicate has not been asked."""


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
    op: str,
    found: Survey,
    environment: Environment,
    settings: Settings,
    command_line: Mapping[str, Sequence[str]],
    *,
    compiling: bool = False,
) -> Forecast:
    """Return what files tell of an op's selection.

    Args:
        op: its name.
        found: what is installed, judged for a platform.
        environment: the variables.
        settings: the settings file.
        command_line: provider names by op.
        compiling: whether the answer is for a graph that Inductor compiles.

    Raises:
        UnknownOp: the op, or one that the command line names, is in no manifest.
        MalformedPriority: a list cannot be read.
    """
    known = declared_ops(found)
    for name in (op, *command_line):
        if name not in known:
            raise UnknownOp(op=name, known=tuple(known), layer=None if name == op else f"{FLAG}.{name}")
    lists = parse_text(environment.op_priority, Layer.ENVIRONMENT.label) if environment.op_priority else {}
    wishes = [*_defaults(op, found, compiling=compiling), *_wishes(op, lists, settings, command_line)]
    judge = _Judge(op, found, Standing.of(found.distributions), batch_invariant=environment.batch_invariant)
    entries = merge(wishes).entries
    stray = [(name, Layer.ENVIRONMENT.label) for name in lists] + [
        (n, str(settings.file)) for n in settings.op_priority
    ]
    problems: list[ConfigurationError] = [
        UnknownOp(op=name, known=tuple(known), layer=layer) for name, layer in stray if name not in known
    ]
    problems += [problem for entry in entries if (problem := judge.problem(entry)) is not None]
    return Forecast(
        Explanation(op, compiling, judge.verdicts(entries)), _doubts(found), problems[0] if problems else None
    )


def _defaults(op: str, found: Survey, *, compiling: bool) -> list[Wish]:
    """Return what distributions and the platform want."""
    orders = of_distributions(found.distributions, found.platform, compiling=compiling).orders
    return defaults(Landscape(platform=found.platform, provider_defaults={compiling: orders}), op, compiling=compiling)


def _wishes(
    op: str,
    environment: Mapping[str, Sequence[str]],
    settings: Settings,
    command_line: Mapping[str, Sequence[str]],
) -> list[Wish]:
    """Return what the operator wants: file, environment, command line."""
    wishes = []
    if op in settings.op_priority and settings.file is not None:
        names = read_providers(settings.op_priority[op], str(settings.file))
        wishes.append(Wish(Layer.FILE, names, source=settings.file.name))
    if op in environment:
        wishes.append(Wish(Layer.ENVIRONMENT, tuple(environment[op])))
    if op in command_line:
        wishes.append(Wish(Layer.COMMAND_LINE, tuple(command_line[op])))
    return wishes


def _doubts(found: Survey) -> tuple[str, ...]:
    """Return a sentence for each distribution that decides at run time what files cannot tell."""
    doubts = []
    for record in found.distributions:
        if record.failure or not record.manifest:
            continue
        if record.manifest.defaults_at_run_time:
            doubts.append(f"{record.name} decides its default order at run time; leave --static out to see it.")
        if record.manifest.platform:
            doubts.append(
                f"{record.name} brings platform {record.manifest.platform!r}; only loading tells whether this machine"
                " is one, and in which order it wants providers."
            )
    return tuple(doubts)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges candidates of one op.

    Attributes:
        op: its name.
        found: what is installed.
        standing: who can stand in an order.
        batch_invariant: whether only batch-invariant implementations are admitted.
    """

    op: str
    found: Survey
    standing: Standing
    batch_invariant: bool

    def refuse(self, provider: str) -> str | None:
        """Return why a provider cannot run the op, or None where it may."""
        reason = self.standing.refuse(provider, self.op)
        if reason is not None:
            return reason
        record = self.standing.providers.get(provider)
        said = record.manifest.ops.get(self.op) if record and record.manifest else None
        return NOT_INVARIANT if self.batch_invariant and not (said and said.batch_invariant) else None

    def verdicts(self, entries: Sequence[Entry]) -> tuple[Verdict, ...]:
        """Return the verdict on every place of the order, and on every provider of the op that has none."""
        verdicts: list[Verdict] = []
        taken: str | None = None
        for entry in entries:
            reason = self.refuse(entry.provider)
            if reason is not None:
                verdicts.append(Verdict(entry.provider, entry.source, accepted=False, reason=reason))
            elif taken == NATIVE:
                not_reached = f"not reached: {taken} takes the call"
                verdicts.append(Verdict(entry.provider, entry.source, accepted=True, reason=not_reached))
            else:
                unasked = None if entry.provider == NATIVE else UNASKED
                first = taken is None
                verdicts.append(Verdict(entry.provider, entry.source, accepted=True, reason=unasked, selected=first))
                taken = entry.provider
        named = {entry.provider for entry in entries}
        for record in self.found.providers:
            if record.name not in named and record.manifest and self.op in record.manifest.ops:
                named.add(record.name)
                reason = self.refuse(record.name) or "no priority list names it"
                verdicts.append(Verdict(record.name, "", accepted=False, reason=reason))
        return tuple(verdicts)

    def problem(self, entry: Entry) -> ConfigurationError | None:
        """Return the error that a run would stop with, for a place that a user asked for and that cannot run."""
        reason = self.refuse(entry.provider)
        if reason is None or not entry.required:
            return None
        provider, layer, record = entry.provider, entry.source, self.standing.providers.get(entry.provider)
        if record is None:
            return UnknownProvider(op=self.op, provider=provider, known=tuple(self.standing.providers), layer=layer)
        if record.failure is None and record.manifest and self.op not in record.manifest.ops:
            return ProviderLacksOp(op=self.op, provider=provider, has=record.ops, layer=layer)
        return UnusableProvider(op=self.op, provider=provider, reason=reason, layer=layer)
