"""This machine as a lock would hold it: what is installed, with which bytes, and who would run each op.

Everything comes from files: nothing is imported, so it is also said of platforms that are not here. Whether that is
what was locked is left to `comparing`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from vllm_ir.lock.document import MODES, Lock, LockedDistribution, LockedPlatform, Place
from vllm_ir.lock.installed import Inspector
from vllm_ir.names import NATIVE, normalise
from vllm_ir.plugins.forecast import declared_ops, forecast
from vllm_ir.plugins.manifest import PROVIDER_APIS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir.errors import ConfigurationError
    from vllm_ir.lock.document import Orders
    from vllm_ir.lock.installed import Inspected
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.records import Failure
    from vllm_ir.plugins.static import Survey
    from vllm_ir.preferences import Preferences
    from vllm_ir.verdict import Explanation


@dataclass(frozen=True, slots=True)
class Taken:
    """What a machine is.

    Args:
        lock: the same as a lock says it.
        inspected: what was seen of each distribution's files, by name.
        refused: why a provider does not stand in an order, by platform, mode and op, each as "provider: reason".
        unusable: why a distribution that is installed does not load, by name.
        here: key of this machine's platform; None where only others were asked about.
        problems: what a run would stop with.
        notes: what files cannot tell.
    """

    lock: Lock
    inspected: dict[str, Inspected]
    refused: dict[tuple[str, bool, str], tuple[str, ...]]
    unusable: dict[str, Failure]
    here: str | None
    problems: tuple[ConfigurationError, ...]
    notes: tuple[str, ...]


def take(surveys: Sequence[Survey], preferences: Preferences, inspector: Inspector | None = None) -> Taken:
    """Return what this machine is.

    Args:
        surveys: what is installed, judged for one platform each; at least one.
        preferences: what users asked for.
        inspector: looks at files; default: one that takes a glance.

    Raises:
        MalformedPriority: a list of a variable or the settings file cannot be read.
    """
    inspector = inspector or Inspector()
    problems: list[ConfigurationError] = list(surveys[0].conflicts)
    notes: list[str] = []
    refused: dict[tuple[str, bool, str], tuple[str, ...]] = {}
    platforms: dict[str, LockedPlatform] = {}
    for found in surveys:
        orders: dict[bool, dict[str, tuple[Place, ...]]] = {False: {}, True: {}}
        key = platform_key(found.platform)
        for op in _ops(found):
            for compiling in MODES:
                told = forecast(op, found, preferences, compiling=compiling)
                orders[compiling][op] = _places(told.explanation)
                refused[key, compiling, op] = _refusals(told.explanation)
                notes += told.doubts
                if told.problem is not None:
                    problems.append(told.problem)
        notes += [f"{each.name} on {key}: {each.note}" for each in found.providers if each.usable and each.note]
        platforms[key] = describe_platform(found.platform, orders[False], orders[True])
    kept = [record for record in surveys[0].distributions if record.failure is None and record.manifest is not None]
    inspected = {normalise(record.name): inspector.inspect(record) for record in kept}
    distributions = {
        normalise(record.name): LockedDistribution(
            name=normalise(record.name),
            version=record.version,
            manifest=f"sha256:{record.manifest.digest}",
            providers=tuple(sorted(record.manifest.providers)),
            digest=inspected[normalise(record.name)].digest,
        )
        for record in kept
        if record.manifest is not None
    }
    return Taken(
        lock=Lock(
            core=next((each.version for each in surveys[0].distributions), "unknown"),
            provider_api=tuple(PROVIDER_APIS),
            distributions=distributions,
            platforms=platforms,
            recorded=_versions(),
        ),
        inspected=inspected,
        refused=refused,
        unusable={normalise(each.name): each.failure for each in surveys[0].distributions if each.failure},
        here=next((platform_key(each.platform) for each in surveys if not each.platform.named), None),
        problems=_once(problems),
        notes=tuple(dict.fromkeys(notes)),
    )


def _ops(found: Survey) -> list[str]:
    """Return the ops of all distributions that may load."""
    usable = replace(found, distributions=tuple(each for each in found.distributions if each.failure is None))
    return sorted(declared_ops(usable))


def platform_key(platform: Platform) -> str:
    """Return under which key a lock keeps a platform."""
    return describe_platform(platform, {}, {}).key


def describe_platform(platform: Platform, eager: Orders, compiling: Orders) -> LockedPlatform:
    """Return a platform as a lock says it; of one that was only named, driver and toolkit are not known."""
    recorded = {}
    if not platform.named and not platform.is_cpu():
        toolkit = platform.torch_build.partition("(")[2].rstrip(")")
        recorded = {"driver": platform.driver or "", "toolkit": toolkit}
    return LockedPlatform(
        name=platform.name,
        architectures=_architectures(platform),
        eager=eager,
        compiling=compiling,
        recorded={name: value for name, value in recorded.items() if value},
    )


def _architectures(platform: Platform) -> tuple[str, ...]:
    """Return what the devices are, each once, in order."""
    found = {
        device.gfx or (f"{device.capability[0]}.{device.capability[1]}" if device.capability else "")
        for device in platform.devices
    }
    return tuple(sorted(each for each in found if each))


def _places(told: Explanation) -> tuple[Place, ...]:
    """Return who may run an op, up to native, which takes every call."""
    places = []
    for verdict in told.verdicts:
        if verdict.accepted:
            places.append(Place(verdict.provider, verdict.layer))
            if verdict.provider == NATIVE:
                break
    return tuple(places)


def _refusals(told: Explanation) -> tuple[str, ...]:
    """Return why the others do not run it."""
    return tuple(f"{each.provider}: {each.reason}" for each in told.verdicts if not each.accepted)


@cache
def _versions() -> dict[str, str]:
    """Return the versions of Python and, where it is installed, of torch."""
    from vllm_ir.platforms.torch_build import find_version_file, read_torch_build

    torch = read_torch_build(find_version_file()).version
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "torch": torch} if torch else {"python": python}


def _once(problems: Sequence[ConfigurationError]) -> tuple[ConfigurationError, ...]:
    """Return each problem once: one list in a variable is read for every op."""
    return tuple({str(problem): problem for problem in problems}.values())
