"""The default order of each op: who asks to be in it, merged by rank; what cannot stand there is dropped and recorded.

A provider that nobody has installed keeps a place that a manifest expects it at, so that it is shown as absent.

Where `native` stands, and what users put before all of it, is left to `orders`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import BadValue
from vllm_ir.names import NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.manifest import Defaults
    from vllm_ir.plugins.records import DistributionRecord, ProviderRecord

Orders = dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A provider that somebody wanted in a default order and that cannot stand there.

    Args:
        op: the order's op.
        provider: who was wanted.
        wanted_by: the platform or distribution that wanted it.
        reason: why it cannot.
    """

    op: str
    provider: str
    wanted_by: str
    reason: str

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {"op": self.op, "provider": self.provider, "wanted_by": self.wanted_by, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Merged:
    """Default orders by op, and what was left out of them."""

    orders: Orders
    dropped: tuple[Dropped, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """Who can stand in an order here: providers by name, as discovery left them."""

    providers: Mapping[str, ProviderRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[DistributionRecord]) -> Standing:
        """Return the providers of some distributions; of two with one name the one that is usable counts."""
        found: dict[str, ProviderRecord] = {}
        for each in (each for record in records for each in record.providers):
            if each.usable or each.name not in found:
                found[each.name] = each
        return cls(found)

    @property
    def ops(self) -> tuple[str, ...]:
        """Every op that one of them implements."""
        return tuple(dict.fromkeys(op for record in self.providers.values() for op in record.ops))

    def refuse(self, provider: str, op: str) -> str | None:
        """Return why a provider cannot stand in an op's order, or None where it can."""
        if provider == NATIVE:
            return None
        record = self.providers.get(provider)
        if record is None:
            return "it is not installed"
        if record.failure is not None:
            return record.failure.reason
        if op not in record.ops:
            return f"it has no implementation of {op}"
        return dict(record.refused_ops).get(op)


def of_distributions(
    records: Iterable[DistributionRecord],
    platform: Platform,
    *,
    compiling: bool,
    at_run_time: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
) -> Merged:
    """Return the orders that distributions ask for: a higher rank first, ties by the distribution's name.

    Args:
        records: the distributions.
        platform: the machine.
        compiling: whether the orders are for graphs that are being compiled.
        at_run_time: what a distribution's hook said, by distribution, in place of its manifest's tables.
    """
    records = list(records)
    standing = Standing.of(records)
    wishes: list[tuple[str, str, str]] = []
    expected: set[str] = set()
    for record in sorted(records, key=_rank):
        said = (at_run_time or {}).get(record.name)
        table = _written(record, platform, compiling=compiling) if said is None else said
        wishes += [(op, provider, record.name) for op, names in table.items() for provider in names]
        for provider, defaults in _expected(record).items():
            expected.add(provider)
            places = defaults.of(compiling=compiling)
            wishes += [(op, provider, record.name) for op, names in places.items() if platform.name in names]
    return _merge(wishes, standing, expected)


def of_platform(platform: Platform, records: Iterable[DistributionRecord], *, compiling: bool) -> Merged:
    """Return the orders that a platform asks for, written with or without the argument `compiling`.

    What a configuration says for every op is taken for each op that somebody here implements.

    Raises:
        BadValue: the platform returned something else than lists of provider names by op.
    """
    ask: Callable[..., Any] = platform.get_default_ir_op_priority
    answer = ask(compiling) if inspect.signature(ask).parameters else ask()
    if not isinstance(answer, Mapping):
        raise _bad(platform, answer)
    standing = Standing.of(records)
    lists = dict.fromkeys(standing.ops, getattr(answer, "for_every_op", ())) | dict(answer)
    for op, names in lists.items():
        if not isinstance(op, str) or isinstance(names, str) or not isinstance(names, Sequence):
            raise _bad(platform, {op: names})
    return _merge([(op, name, f"platform {platform.name}") for op, names in lists.items() for name in names], standing)


def _bad(platform: Platform, answer: object) -> BadValue:
    """Return the error for what is no table of orders."""
    wanted = "a dict from op names to lists of provider names"
    return BadValue(who=f"platform {platform.name!r}", field="its default priority", got=repr(answer), wanted=wanted)


def _rank(record: DistributionRecord) -> tuple[int, str]:
    """Return what distributions are sorted by."""
    return (-record.manifest.rank if record.manifest else 0, record.name)


def _written(record: DistributionRecord, platform: Platform, *, compiling: bool) -> dict[str, list[str]]:
    """Return the providers by op that a manifest's tables ask for on this machine."""
    table: dict[str, list[str]] = {}
    for provider in record.manifest.providers.values() if record.manifest else ():
        for op, platforms in provider.defaults.of(compiling=compiling).items():
            if platform.name in platforms:
                table.setdefault(op, []).append(provider.name)
    return table


def _expected(record: DistributionRecord) -> Mapping[str, Defaults]:
    """Return where a distribution leaves places for providers of others; one that is refused as a whole has no say."""
    return {} if record.manifest is None or record.failure else record.manifest.expects


def _merge(wishes: Iterable[tuple[str, str, str]], standing: Standing, expected: Container[str] = ()) -> Merged:
    """Return orders out of wishes, each provider once, without those that cannot stand there.

    Args:
        wishes: op, provider and who wants it there.
        standing: who can stand in an order here.
        expected: providers that keep their place where they are not installed.
    """
    orders: dict[str, list[str]] = {}
    dropped = []
    for op, provider, wanted_by in wishes:
        absent = provider in expected and provider not in standing.providers
        reason = None if absent else standing.refuse(provider, op)
        if reason is not None:
            dropped.append(Dropped(op=op, provider=provider, wanted_by=wanted_by, reason=reason))
        elif provider not in orders.setdefault(op, []):
            orders[op].append(provider)
    return Merged({op: tuple(names) for op, names in orders.items() if names}, tuple(dropped))
