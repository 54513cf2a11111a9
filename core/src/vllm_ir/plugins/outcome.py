"""What came of discovery, and what follows from it for the process: default orders, who is usable, one line to log.

How distributions are loaded is left to `loading`, when, to `discovery`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_ir.errors import ProviderError
from vllm_ir.landscape import Landscape
from vllm_ir.log import logger
from vllm_ir.plugins import defaults, hooks
from vllm_ir.plugins.records import Found
from vllm_ir.plugins.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir.errors import DistributionConflict
    from vllm_ir.graphs import BasePass
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.defaults import Dropped, Merged
    from vllm_ir.plugins.hooks import Hooks
    from vllm_ir.plugins.loading import Session
    from vllm_ir.plugins.records import DistributionRecord
    from vllm_ir.plugins.static import Survey


@dataclass(frozen=True, slots=True)
class Discovery(Found):
    """What was found and loaded.

    Args:
        platform: the machine, as a distribution may have brought it.
        distributions: one record each, the core first, then in the order of the path.
        landscape: what the runtime needs of it.
        hooks: the hooks of what is loaded, for warming up.
        dropped: providers that a default order named and that cannot stand there.
        doubts: sentences about the operator's lists that are no error but look like a mistake.
        summary: one line, logged once and kept.
        conflicts: what a program would have stopped with.
    """

    platform: Platform
    distributions: tuple[DistributionRecord, ...]
    landscape: Landscape
    hooks: tuple[Hooks, ...]
    dropped: tuple[Dropped, ...]
    doubts: tuple[str, ...]
    summary: str
    conflicts: tuple[DistributionConflict, ...] = ()


def conclude(
    final: Survey,
    outcome: Mapping[str, DistributionRecord],
    sessions: list[Session],
    conflicts: Sequence[DistributionConflict] = (),
) -> Discovery:
    """Return the discovery with everything that follows from the records."""
    found = tuple(outcome[record.name] for record in final.distributions)
    at_run_time = {each.record.name: each.priorities for each in sessions if each.priorities is not None}
    merged: dict[tuple[str, bool], Merged] = {}
    for compiling in (False, True):
        merged["distributions", compiling] = defaults.of_distributions(
            found,
            final.platform,
            compiling=compiling,
            at_run_time={name: said[compiling] for name, said in at_run_time.items()},
        )
        merged["platform", compiling] = _of_platform(final.platform, found, compiling=compiling)
    usable = {each.name: record.name for record in found for each in record.providers if each.usable}
    landscape = Landscape(
        platform=final.platform,
        provider_defaults={compiling: merged["distributions", compiling].orders for compiling in (False, True)},
        platform_defaults={compiling: merged["platform", compiling].orders for compiling in (False, True)},
        unusable={
            each.name: each.reason
            for record in found
            for each in record.providers
            if each.reason and each.name not in usable
        },
        distributions=usable,
        passes=_passes(sessions),
    )
    return Discovery(
        platform=final.platform,
        distributions=found,
        landscape=landscape,
        hooks=tuple(each.hooks for each in sessions if each.hooks is not None),
        dropped=tuple(dict.fromkeys(each for part in merged.values() for each in part.dropped)),
        doubts=final.doubts,
        summary=summarise(found),
        conflicts=tuple(conflicts),
    )


def _passes(sessions: Sequence[Session]) -> tuple[tuple[str, BasePass], ...]:
    """Return the graph passes of all distributions: a higher rank first, ties by name."""
    ranked = sorted(sessions, key=lambda each: (-each.manifest.rank, each.record.name))
    return tuple((each.record.name, made) for each in ranked for made in each.passes)


def _of_platform(platform: Platform, found: Sequence[DistributionRecord], *, compiling: bool) -> Merged:
    """Return the orders that the platform asks for; one whose code raises asks for none."""
    try:
        merged: Merged = hooks.guard(
            platform.name,
            "get_default_ir_op_priority",
            lambda: defaults.of_platform(platform, found, compiling=compiling),
        )
    except ProviderError as error:
        logger.warning("%s", error, exc_info=error)
        return defaults.Merged({})
    return merged
