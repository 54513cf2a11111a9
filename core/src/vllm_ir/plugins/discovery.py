"""Finding and loading what is installed, once a process, and telling the runtime what came of it.

A distribution that fails is a record of its kind; the others work. What stops everything is only what the operator
has to decide: two distributions with one provider name, or a name in the allow list that is not installed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from vllm_ir import runtime
from vllm_ir.errors import DuplicatePlatform, InternalError, ProviderError
from vllm_ir.log import logger
from vllm_ir.names import NATIVE
from vllm_ir.plugins import admission, loading
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.outcome import conclude
from vllm_ir.plugins.policy import DENY, Policy
from vllm_ir.plugins.static import survey
from vllm_ir.plugins.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir.environment import Environment
    from vllm_ir.errors import DistributionConflict
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins.distributions import Installed
    from vllm_ir.plugins.loading import Session
    from vllm_ir.plugins.outcome import Discovery
    from vllm_ir.plugins.records import DistributionRecord, ProviderRecord
    from vllm_ir.plugins.requirements import Libraries
    from vllm_ir.plugins.static import Survey


Finished = dict[str, "tuple[DistributionRecord, Session]"]
"""Records and sessions of the distributions that are loaded, by name."""


def discover(
    environment: Environment,
    platform: Platform,
    installed: Sequence[Installed] | None = None,
    libraries: Libraries | None = None,
    finished: Finished | None = None,
    *,
    stop: bool = True,
    policy: Policy | None = None,
    lock: admission.Admission | None = None,
) -> Discovery:
    """Load every distribution that may load, and return what came of each.

    Args:
        environment: the operator's variables.
        platform: the machine as it can be seen without loading anything.
        installed: the distributions; default: those on the path.
        libraries: the libraries that providers may require; default: those on the path.
        finished: what an earlier attempt has loaded, which stays; what this one loads is added.
        stop: raise for what two distributions claim; otherwise it fails in both, and the rest is loaded.
        policy: who may run what; default: what the variables and the files say.
        lock: what the process is held to; None for nothing.

    Raises:
        UnknownAllowed: the allow list names what is not installed.
        DuplicateProvider: two distributions bring one provider.
        DuplicatePlatform: two distributions bring a platform for this machine.
        LockMismatch: what is here is not what was locked; nothing of it was imported.
    """
    finished = {} if finished is None else finished
    installed = scan() if installed is None else installed
    policy = Policy.read(environment) if policy is None else policy
    first = survey(environment, platform, installed, libraries, policy=policy, admission=lock)
    conflicts: list[DistributionConflict] = list(first.conflicts)
    if conflicts and stop:
        raise conflicts[0]
    if lock is not None:
        lock.verify(first)
    sessions, failures, answers = _ask_for_platforms(first)
    if len(answers) > 1:
        conflict = DuplicatePlatform(
            platforms=[each.name for each in answers.values()], distributions=list(answers), variable=DENY
        )
        if stop:
            raise conflict
        conflicts.append(conflict)
        failures.update(dict.fromkeys(answers, conflict))
        answers = {}
    brought = next(iter(answers.values()), None)
    machine = brought or platform
    final = survey(environment, machine, installed, libraries, platform_known=True, policy=policy, admission=lock)
    undecided = {record.name: record for record in first.distributions}
    broken = {name: loading.failed(undecided[name], error) for name, error in failures.items()}
    outcome = _load(final, sessions, broken, finished)
    _require_native(outcome)
    return conclude(final, outcome, [session for _, session in finished.values()], conflicts)


def _ask_for_platforms(
    first: Survey,
) -> tuple[dict[str, Session], dict[str, ProviderError | DistributionConflict], dict[str, Platform]]:
    """Return by distribution the sessions opened for it, what failed, and what this machine is said to be."""
    sessions: dict[str, Session] = {}
    failures: dict[str, ProviderError | DistributionConflict] = {}
    answers: dict[str, Platform] = {}
    for record in first.distributions:
        if record.failure or record.manifest is None or record.manifest.platform is None:
            continue
        session = sessions[record.name] = loading.Session.begin(record, record.manifest)
        try:
            answer = session.platform()
        except ProviderError as error:
            failures[record.name] = error
            continue
        if answer is not None:
            answers[record.name] = answer
    return sessions, failures, answers


def _load(
    final: Survey, sessions: Mapping[str, Session], broken: Mapping[str, DistributionRecord], finished: Finished
) -> dict[str, DistributionRecord]:
    """Return the records of all distributions after loading what may load; those that add ops come first."""
    outcome: dict[str, DistributionRecord] = {}
    absent: dict[str, str] = {}
    for record in sorted(final.distributions, key=_adds_no_ops):
        if record.name in finished:
            outcome[record.name] = finished[record.name][0]
        elif record.name in broken or not _may_load(record) or record.manifest is None:
            outcome[record.name] = broken.get(record.name, record)
            if record.name in sessions:
                sessions[record.name].abandon()
        else:
            session = sessions.get(record.name) or loading.Session.begin(record, record.manifest)
            try:
                outcome[record.name] = session.finish(record, final.platform, absent)
                finished[record.name] = (outcome[record.name], session)
            except ProviderError as error:
                session.abandon()
                outcome[record.name] = loading.failed(record, error)
                logger.debug("%s", error, exc_info=error)
        if record.name not in finished and record.manifest is not None:
            absent.update(dict.fromkeys(record.manifest.adds_ops, f"{record.name}, which adds the op, is not loaded"))
    return outcome


def _require_native(outcome: Mapping[str, DistributionRecord]) -> None:
    """Refuse to go on without the native functions: they are the fallback of everything.

    Raises:
        InternalError: they did not load.
    """
    for record in outcome.values():
        for each in record.providers:
            if each.name == NATIVE and each.reason is not None:
                raise InternalError(what=f"Provider 'native' did not load: {each.reason}")


def _adds_no_ops(record: DistributionRecord) -> bool:
    """Sort distributions that add ops before those that only implement them."""
    return not (record.manifest and record.manifest.adds_ops)


def _may_load(record: DistributionRecord) -> bool:
    """Tell whether there is a reason to import a distribution: a usable provider, or none at all but ops."""
    return record.failure is None and (not record.providers or any(each.usable for each in record.providers))


def load_providers() -> Discovery | None:
    """Find and load what is installed, the first time; later calls return the same.

    Threads wait for the one that loads. None is returned to a caller inside the loading itself, such as a provider
    that calls an op while it is imported: it sees the process as it was before.

    Raises:
        UnknownAllowed: VLLM_IR_PROVIDERS names what is not installed.
        DuplicateProvider: two distributions bring one provider.
        DuplicatePlatform: two distributions bring a platform for this machine.
        LockMismatch: the process is not what VLLM_IR_LOCK locks.
    """
    state = runtime.current()
    found: Discovery | None = state.discovery.get(_load_into_runtime)
    return found


def load_around_conflicts() -> Discovery | None:
    """Find and load as `load_providers`, but set aside what two distributions claim, for a command that shows it.

    That command shows the doubts, too, so they are not logged.

    Raises:
        UnknownAllowed: VLLM_IR_PROVIDERS names what is not installed.
    """
    found: Discovery | None = runtime.current().discovery.get(partial(_load_into_runtime, stop=False))
    return found


def providers() -> tuple[ProviderRecord, ...]:
    """Return a record of every installed provider, loaded or not, with the reason where it is not usable.

    Raises:
        ConfigurationError: as `load_providers`.
    """
    found = load_providers()
    return () if found is None else found.providers


def show_summary() -> str | None:
    """Log the summary line again, for a program that configured logging late, and return it; None before discovery."""
    found: Discovery | None = runtime.current().discovery.result
    if found is None:
        return None
    logger.info("%s", found.summary)
    return found.summary


def _load_into_runtime(*, stop: bool = True) -> Discovery:
    """Discover, hand the runtime what came of it, and say it in one line."""
    from vllm_ir import ops  # noqa: F401 - the core's own ops are registered before anybody implements them

    state = runtime.current()
    policy, file = state.policy, state.preferences.settings.file
    lock, finished = admission.in_force(state.preferences), state.discovery.finished
    found = discover(state.environment, state.platform, finished=finished, stop=stop, policy=policy, lock=lock)
    settings = str(file) if file is not None else None
    found = replace(found, summary=summarise(found.distributions, settings, policy.files))
    if lock is not None:
        found = replace(found, landscape=lock.confirm(found.landscape, state.registry))
    state.adopt(found.landscape)
    for doubt in found.doubts if stop else ():
        logger.warning("%s", doubt)
    for each in found.dropped:
        logger.debug("default order of %s: %s left out: %s", each.op, each.provider, each.reason)
    logger.info("%s", found.summary)
    return found
