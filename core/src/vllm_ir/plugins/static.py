"""What files tell about every installed provider: whether it may load here, decided before any of it is imported.

Loading, and what only shows then, is left to `discovery`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllm_ir.errors import DeniedByPolicy, DuplicateProvider, NotLocked, WrongPlatform
from vllm_ir.plugins import distributions
from vllm_ir.plugins.description import describe, with_core
from vllm_ir.plugins.fitting import in_words, unmet
from vllm_ir.plugins.policy import DENY, Policy, check, doubts
from vllm_ir.plugins.records import DistributionRecord, Failure, Found, ProviderRecord
from vllm_ir.plugins.requirements import Libraries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vllm_ir.environment import Environment
    from vllm_ir.errors import MissingLibrary
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.admission import Admission
    from vllm_ir.plugins.distributions import Installed
    from vllm_ir.plugins.manifest import Need, ProviderManifest


@dataclass(frozen=True, slots=True)
class Survey(Found):
    """What is installed, and which of it may load.

    Args:
        platform: the machine the verdicts are for.
        distributions: one record each, the core first, then in the order of the path.
        conflicts: provider names that two distributions bring; loading raises them.
        doubts: sentences about the operator's lists that are no error but look like a mistake.
    """

    platform: Platform
    distributions: tuple[DistributionRecord, ...]
    conflicts: tuple[DuplicateProvider, ...] = ()
    doubts: tuple[str, ...] = ()


def survey(
    environment: Environment,
    platform: Platform,
    installed: Sequence[Installed] | None = None,
    libraries: Libraries | None = None,
    *,
    platform_known: bool = False,
    policy: Policy | None = None,
    admission: Admission | None = None,
) -> Survey:
    """Return a record of every distribution and provider, from files alone.

    Args:
        environment: the operator's variables.
        platform: the machine to judge for; it need not be this one.
        installed: the distributions; default: those on the path.
        libraries: the libraries that providers may require; default: those on the path.
        platform_known: whether `platform` is final; otherwise a provider for a platform that an installed distribution
            brings stays undecided until that distribution has loaded. A platform that was named is.
        policy: who may run what; default: what the variables say, the policy file and that of the working folder.
        admission: a lock that leaves out what it does not name.

    Raises:
        UnknownAllowed, UnknownAllowedOp: the allow list names what is not installed.
        MalformedSettings: a file with a policy cannot be read.
    """
    installed = distributions.scan() if installed is None else installed
    libraries = libraries or Libraries()
    found = [describe(each) for each in with_core([each for each in installed if each.providers])]
    known = [name for record in found for name in (record.name, *(each.name for each in record.providers))]
    policy = Policy.read(environment) if policy is None else policy
    ops = dict.fromkeys(op for record in found for op in _ops(record))
    check(policy, known, list(ops) if all(record.manifest for record in found) else None)
    found = [_apply_policy(_admit(record, admission), policy) for record in found]
    conflicts = _conflicts(found)
    final = platform_known or platform.named
    judge = _Judge(platform, libraries, conflicts, frozenset() if final else _brought(found) - {platform.name})
    return Survey(
        platform,
        tuple(judge.judge(record) for record in found),
        tuple(conflicts.values()),
        doubts(policy, known, ops),
    )


def brought_platforms(installed: Sequence[Installed] | None = None) -> tuple[str, ...]:
    """Return the names of the platforms that installed distributions bring, as their manifests say.

    Args:
        installed: the distributions; default: those on the path.
    """
    found = (describe(each) for each in (distributions.scan() if installed is None else installed) if each.providers)
    return tuple(dict.fromkeys(each.manifest.platform for each in found if each.manifest and each.manifest.platform))


def _ops(record: DistributionRecord) -> Iterator[str]:
    """Yield every op that a manifest names."""
    if record.manifest is not None:
        yield from record.manifest.adds_ops
        for provider in record.manifest.providers.values():
            yield from provider.ops


def _admit(record: DistributionRecord, admission: Admission | None) -> DistributionRecord:
    """Leave out what a lock in force does not name, whatever else may be wrong with it."""
    error = None if admission is None else admission.refuse(record.name)
    return record if error is None else record.fail(Failure.of(error))


def _apply_policy(record: DistributionRecord, policy: Policy) -> DistributionRecord:
    """Deny what the operator denies; that is said of a provider before anything else that may be wrong with it."""
    providers = tuple(_restrict(each, policy) for each in record.providers)
    failure = record.failure
    refused = [each.failure for each in providers if each.failure and each.failure.kind == DeniedByPolicy.kind]
    if len(refused) == len(providers):
        error = None if providers else policy.refuse(record.entry_point, record.name)
        failure = Failure.of(error) if error else (refused[0] if refused else failure)
    return replace(record, providers=providers, failure=failure)


def _restrict(record: ProviderRecord, policy: Policy) -> ProviderRecord:
    """Deny a provider, or those of its ops, that the operator denies; one without an op that it may run is denied."""
    error = policy.refuse(record.name, record.distribution)
    if error is not None:
        return record.refuse(error)
    refused = {op: each for op in record.ops if (each := policy.refuse(record.name, record.distribution, op))}
    if refused and len(refused) == len(record.ops):
        return record.refuse(next(iter(refused.values())))
    return replace(record, refused_ops=tuple((op, str(each)) for op, each in refused.items()))


def _conflicts(found: list[DistributionRecord]) -> dict[str, DuplicateProvider]:
    """Return an error for each provider name that several distributions bring and nobody denied."""
    wanted = [
        (each.name, record.name)
        for record in found
        for each in record.providers
        if each.manifest and not (each.failure and each.failure.kind in (DeniedByPolicy.kind, NotLocked.kind))
    ]
    return {
        name: DuplicateProvider(
            provider=name,
            distributions=sorted(distribution for provider, distribution in wanted if provider == name),
            variable=DENY,
        )
        for name, count in Counter(provider for provider, _ in wanted).items()
        if count > 1
    }


def _brought(found: list[DistributionRecord]) -> frozenset[str]:
    """Return the platforms that distributions which may load bring."""
    return frozenset(
        record.manifest.platform
        for record in found
        if record.manifest and record.manifest.platform and record.failure is None
    )


@dataclass(frozen=True, slots=True)
class _Judge:
    """Judges providers that nothing has refused yet.

    Args:
        platform: the machine.
        libraries: what is installed.
        conflicts: errors by provider name.
        open_platforms: platforms of which only loading can tell whether this machine is one.
    """

    platform: Platform
    libraries: Libraries
    conflicts: dict[str, DuplicateProvider]
    open_platforms: frozenset[str]

    def judge(self, record: DistributionRecord) -> DistributionRecord:
        """Return a distribution's record with the verdict on each of its providers."""
        providers = tuple(each if each.failure else self._provider(each) for each in record.providers)
        return replace(record, providers=providers)

    def _provider(self, record: ProviderRecord) -> ProviderRecord:
        """Return one provider's record with its verdict."""
        if record.name in self.conflicts:
            return record.refuse(self.conflicts[record.name])
        manifest = record.manifest
        if manifest is None:
            return record
        denied = dict(record.refused_ops)
        refused = {name: got for name in manifest.ops if (got := self._op(manifest, name)) is not None}
        if len(refused) == len(manifest.ops):
            return record.refuse(self._wrong_platform(record, manifest, next(iter(refused.values()))))
        asked = "the platform asked about" if self.platform.named else "this machine"
        reasons = {
            name: f"it is for {in_words(manifest.platforms_of(name).values())}; {asked} is {got}"
            for name, got in refused.items()
            if name not in denied
        }
        if len(denied) + len(reasons) == len(manifest.ops):
            reason = next(iter(denied.values()))
            return record.fail(Failure(DeniedByPolicy.kind, reason, fault=False))
        error = self.libraries.refuse(manifest.requires, record.name, record.distribution)
        if error is not None and not self.platform.named:
            return record.refuse(error)
        return replace(record, refused_ops=(*denied.items(), *reasons.items()), note=self._note(manifest, error))

    def _note(self, manifest: ProviderManifest, error: MissingLibrary | None) -> str | None:
        """Return what files cannot tell of a provider that may run, or None where they tell all.

        Which libraries another machine has is not known here, so what is missing on this one is no refusal there.
        """
        if error is not None:
            return f"The machine that is asked about needs {error.library}{error.wanted} for it; here {error.got}."
        waits = sorted(self.open_platforms & set(manifest.platforms))
        return f"Only loading tells whether this machine is {' or '.join(waits)}." if waits else None

    def _op(self, manifest: ProviderManifest, name: str) -> str | None:
        """Return what this machine is, where one op cannot run on it."""
        return self._unmet(manifest.platforms) or self._unmet(manifest.platforms_of(name))

    def _unmet(self, needs: Mapping[str, Need]) -> str | None:
        """Return what this machine is, where that is not what is needed."""
        return None if self.open_platforms & set(needs) else unmet(needs, self.platform)

    def _wrong_platform(self, record: ProviderRecord, manifest: ProviderManifest, got: str) -> WrongPlatform:
        """Return the error for a provider of which no op can run here."""
        needs = manifest.platforms
        if self._unmet(needs) is None:  # only the ops' narrower needs leave it out
            needs = {need: each for name in manifest.ops for need, each in manifest.platforms_of(name).items()}
        return WrongPlatform(
            distribution=record.distribution,
            provider=record.name,
            wanted=in_words(needs.values()),
            got=got,
            named=self.platform.named,
        )
