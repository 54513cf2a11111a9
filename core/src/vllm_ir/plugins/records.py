"""What became of each distribution and each provider, as frozen values that `list`, `show` and hosts read.

How a record comes to be is left to `static`, which reads files, and `discovery`, which loads.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ir.errors import DistributionConflict, ProviderError
    from vllm_ir.plugins.manifest import Manifest, ProviderManifest

NOT_LOADED: Final = "not loaded"
"""State of a provider that may load, as far as files tell."""
LOADED: Final = "loaded"
"""State of a provider whose implementations are registered."""
NOT_USABLE: Final = "not usable"
"""State of a provider that does not run here; its failure says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a provider or a distribution does not run.

    Args:
        kind: in a few words, such as "missing library" or "broken import".
        reason: the whole sentence.
        fault: whether somebody has to mend something; False where this machine or its operator leaves it out.
        traceback: text of the traceback where an exception of the provider's own was the cause.
    """

    kind: str
    reason: str
    fault: bool
    traceback: str | None = None

    @classmethod
    def of(cls, error: ProviderError | DistributionConflict, traceback: str | None = None) -> Failure:
        """Return the failure that an error stands for."""
        return cls(kind=error.kind, reason=str(error), fault=error.fault, traceback=traceback)

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {"kind": self.kind, "reason": self.reason, "fault": self.fault, "traceback": self.traceback}


@dataclass(frozen=True, slots=True)
class ShadowedCopy:
    """A second copy of one distribution further down the path: Python imports the first."""

    version: str
    location: str

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {"version": self.version, "location": self.location}


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """One provider.

    Args:
        name: the name in a priority list.
        distribution: the distribution that brings it.
        version: of the distribution.
        state: "loaded", "not loaded" or "not usable".
        ops: ops it implements; where it is loaded, those that it implements here.
        platforms: platforms it is for, in words.
        dtypes: dtypes it is for; None for no limit.
        failure: why it is not usable; None where it is.
        refused_ops: reason by op for ops that this machine leaves out while the provider itself is usable.
        note: what can only be known by loading; None where files tell all.
        manifest: what the manifest says of it; None where there is none to read.
    """

    name: str
    distribution: str
    version: str
    state: str
    ops: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    failure: Failure | None = None
    refused_ops: tuple[tuple[str, str], ...] = ()
    note: str | None = None
    manifest: ProviderManifest | None = None

    @property
    def usable(self) -> bool:
        """Whether it is loaded or may load."""
        return self.failure is None

    @property
    def reason(self) -> str | None:
        """The sentence that says why it is not usable."""
        return self.failure.reason if self.failure else None

    def refuse(self, error: ProviderError | DistributionConflict, traceback: str | None = None) -> ProviderRecord:
        """Return this record with the failure that an error stands for."""
        return self.fail(Failure.of(error, traceback))

    def fail(self, failure: Failure) -> ProviderRecord:
        """Return this record with a failure."""
        return replace(self, failure=failure, state=NOT_USABLE)

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "name": self.name,
            "distribution": self.distribution,
            "version": self.version,
            "state": self.state,
            "ops": list(self.ops),
            "platforms": list(self.platforms),
            "dtypes": None if self.dtypes is None else list(self.dtypes),
            "refused_ops": dict(self.refused_ops),
            "note": self.note,
            "failure": self.failure.describe() if self.failure else None,
        }


@dataclass(frozen=True, slots=True)
class DistributionRecord:
    """One distribution of the entry-point group.

    Args:
        name: of the distribution.
        version: its version.
        location: the folder it is installed in.
        entry_point: name of its entry point: its main provider, or itself where it brings none.
        module: module with its hooks.
        providers: one record a provider.
        failure: why the whole distribution does not load; None where it does or may.
        shadowed: further copies of it on the path.
        manifest: its manifest; None where there is none to read.
    """

    name: str
    version: str
    location: str
    entry_point: str
    module: str
    providers: tuple[ProviderRecord, ...] = ()
    failure: Failure | None = None
    shadowed: tuple[ShadowedCopy, ...] = ()
    manifest: Manifest | None = None

    def fail(self, failure: Failure) -> DistributionRecord:
        """Return this record with a failure, which is also that of each provider that has none of its own."""
        providers = tuple(each if each.failure else each.fail(failure) for each in self.providers)
        return replace(self, failure=failure, providers=providers)

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "name": self.name,
            "version": self.version,
            "location": self.location,
            "entry_point": self.entry_point,
            "module": self.module,
            "summary": self.manifest.summary if self.manifest else None,
            "url": (self.manifest.url or None) if self.manifest else None,
            "rank": self.manifest.rank if self.manifest else None,
            "adds_ops": list(self.manifest.adds_ops) if self.manifest else [],
            "adds_passes": list(self.manifest.adds_passes) if self.manifest else [],
            "brings_platform": self.manifest.platform if self.manifest else None,
            "defaults_at_run_time": self.manifest.defaults_at_run_time if self.manifest else False,
            "failure": self.failure.describe() if self.failure else None,
            "shadowed": [copy.describe() for copy in self.shadowed],
            "providers": [provider.describe() for provider in self.providers],
        }


class Found:
    """What holds a record of every distribution, the core first, then in the order of the path."""

    __slots__ = ()
    distributions: tuple[DistributionRecord, ...]

    @property
    def providers(self) -> tuple[ProviderRecord, ...]:
        """Every provider of every distribution."""
        return tuple(provider for record in self.distributions for provider in record.providers)

    @property
    def digest(self) -> str:
        """SHA-256 of what was found and of what failed: processes with the same one see the same."""
        return digest(self.distributions)


def digest(distributions: Iterable[DistributionRecord]) -> str:
    """Return a digest of what was found: two processes with the same one see the same providers in the same state.

    It covers name and version of each distribution, the bytes of its manifest, and of each provider whether it is
    usable and otherwise the kind of its failure; it leaves out paths, which differ between machines.
    """
    facts = sorted(
        (
            record.name,
            record.version,
            record.manifest.digest if record.manifest else "",
            record.failure.kind if record.failure else "",
            [(each.name, each.failure.kind if each.failure else "") for each in record.providers],
        )
        for record in distributions
    )
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
