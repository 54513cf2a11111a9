"""The report itself: what is found on this machine, what somebody has to mend, and how providers fared in a probe.

A variable, a file or a list that would stop a run does not stop the report; it becomes a finding.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.diagnosis import contents, surroundings, variables
from vllm_ir.environment import Environment
from vllm_ir.errors import (
    ConfigurationError,
    MalformedPriority,
    MalformedSettings,
    MalformedVariable,
    SelectionError,
    UnknownAllowed,
    UnknownAllowedOp,
)
from vllm_ir.names import normalise
from vllm_ir.platforms import detect
from vllm_ir.plugins.admission import in_force
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.forecast import declared_ops, forecast
from vllm_ir.plugins.static import survey
from vllm_ir.policy import Policy, Source
from vllm_ir.preferences import Preferences
from vllm_ir.priority import Layer, parse_text
from vllm_ir.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vllm_ir.diagnosis.results import ProbeResult
    from vllm_ir.diagnosis.surroundings import File, Folder
    from vllm_ir.diagnosis.variables import Variable
    from vllm_ir.plugins.static import Survey

LOCK: Final = "vllm-ir.lock"
"""Name of the lock file that a working folder may have."""

NOBODY: Final = Policy((Source(allow=()),))
"""Who may run where policy or lock stop a run: nothing is tried that they may deny."""


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that somebody who has to help needs to know.

    Attributes:
        versions: of what takes part, by name.
        found: what is installed, judged for this machine.
        variables: those that are set and matter.
        files: those that decide what runs.
        caches: the cache folder and those below it.
        policy: who may be run in a probe.
        problems: what a run would stop with, though everything can be read.
        damage: what is not as it was installed, by normalised name of a distribution.
        probes: how each provider fared; None where none was run.
    """

    versions: Mapping[str, str]
    found: Survey
    variables: tuple[Variable, ...]
    files: tuple[File, ...]
    caches: tuple[Folder, ...]
    policy: Policy = field(default_factory=Policy)
    problems: tuple[str, ...] = ()
    damage: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    probes: tuple[ProbeResult, ...] | None = None

    @property
    def findings(self) -> tuple[str, ...]:
        """What somebody has to mend, one sentence each."""
        found = list(self.problems)
        found += [f"{each.name}={each.value}: {each.problem}" for each in self.variables if each.problem]
        found += [f"{each.role} {each.path}: {each.problem}" for each in self.files if each.problem]
        found += [f"cache {each.path}: {each.problem}" for each in self.caches if each.problem]
        found += [str(each) for each in self.found.conflicts]
        found += [each for sentences in self.damage.values() for each in sentences]
        failures = [one.failure for one in self.found.distributions]
        failures += [each.failure for each in self.found.providers]
        found += [failure.reason for failure in failures if failure and failure.fault]
        found += list(self.found.doubts)
        found += [
            f"provider {each.target.provider} of {each.target.distribution}: {each.reason}"
            for each in self.probes or ()
            if each.fault
        ]
        return tuple(dict.fromkeys(found))

    def with_probes(self, probes: Sequence[ProbeResult]) -> Report:
        """Return this report with what came of running the providers, and what may have been the cause."""
        return replace(self, probes=tuple(map(self._explain, probes)))

    def _explain(self, probe: ProbeResult) -> ProbeResult:
        """Return a result whose reason has what is wrong with the files that it ran."""
        damage = self.damage.get(normalise(probe.target.distribution))
        if damage is None or probe.reason is None:
            return probe
        return replace(probe, reason=f"{probe.reason} Its files are not what was installed; {damage[0]}")

    def describe(self) -> dict[str, Any]:
        """Return everything as values that JSON can hold."""
        return {
            "findings": list(self.findings),
            "versions": dict(self.versions),
            "platform": self.found.platform.describe(),
            "distributions": [each.describe() for each in self.found.distributions],
            "variables": [each.describe() for each in self.variables],
            "files": [each.describe() for each in self.files],
            "caches": [each.describe() for each in self.caches],
            "probes": None if self.probes is None else [each.describe() for each in self.probes],
        }


def examine() -> Report:
    """Return the report on this process and machine, from files alone: no torch and no provider is imported."""
    environment, wrong = _read_environment()
    malformed: dict[str, str] = {}
    settings = _read_settings(malformed)
    policy = None if settings is None else _read_policy(environment, settings, wrong, malformed)
    try:
        found = survey(environment, detect(), policy=policy or Policy())
    except (UnknownAllowed, UnknownAllowedOp) as error:
        wrong[error.variable] = str(error)
        policy, found = None, survey(environment, detect(), policy=Policy())
    if environment.lock is not None:
        found, problem = _hold_to_lock(Preferences(environment, settings), found, policy or Policy())
        if problem is not None:
            malformed[str(Path(environment.lock).expanduser())], policy = problem, None
    if environment.op_priority:
        try:
            parse_text(environment.op_priority, Layer.ENVIRONMENT.label)
        except MalformedPriority as error:
            wrong["VLLM_IR_OP_PRIORITY"] = str(error)
    readable = not wrong and not malformed
    preferences = Preferences(environment, settings)
    if settings is not None:
        found = replace(found, doubts=(*settings.doubts, *found.doubts))
    return Report(
        versions=surroundings.read_versions(_libraries(found)),
        found=found,
        variables=variables.read_variables(os.environ, wrong),
        files=_files(preferences, settings, malformed, found),
        caches=surroundings.read_caches(environment.cache),
        policy=NOBODY if policy is None else policy,
        problems=_problems(found, preferences) if readable else (),
        damage=contents.find_damage(found),
    )


def _problems(found: Survey, preferences: Preferences) -> tuple[str, ...]:
    """Return what a run would stop with, of what the operator asked for and what is installed."""
    stops = (forecast(op, found, preferences).problem for op in declared_ops(found))
    return tuple(dict.fromkeys(str(each) for each in stops if each is not None))


def _read_environment() -> tuple[Environment, dict[str, str]]:
    """Return what the variables say, and why some of them cannot be read; those count as unset."""
    given, wrong = dict(os.environ), dict[str, str]()
    environment: Environment | None = None
    while environment is None:
        with _noting(wrong, given):
            environment = Environment.read(given)
    return environment, wrong


@contextlib.contextmanager
def _noting(wrong: dict[str, str], given: dict[str, str]) -> Iterator[None]:
    """Take out a variable that cannot be read, and note why."""
    try:
        yield
    except MalformedVariable as error:
        wrong[error.variable] = str(error)
        del given[error.variable]


def _read_settings(malformed: dict[str, str]) -> Settings | None:
    """Return the settings of the working folder, or None where they cannot be read, noting why by file."""
    try:
        return Settings.read()
    except MalformedSettings as error:
        malformed[error.file] = str(error)
    return None


def _read_policy(
    environment: Environment, settings: Settings, wrong: dict[str, str], malformed: dict[str, str]
) -> Policy | None:
    """Return who may run what, or None where that cannot be read, noting why by variable or by file."""
    try:
        return Policy.read(environment, settings)
    except MalformedVariable as error:
        wrong[error.variable] = str(error)
    except MalformedSettings as error:
        malformed[error.file] = str(error)
    return None


def _hold_to_lock(preferences: Preferences, found: Survey, policy: Policy) -> tuple[Survey, str | None]:
    """Return what is installed without what the lock in force leaves out, and what would stop a run."""
    try:
        lock = in_force(preferences)
        if lock is None:
            return found, None
        admitted = survey(preferences.environment, detect(), policy=policy, admission=lock)
        lock.verify(admitted)
    except (ConfigurationError, SelectionError) as error:
        return found, str(error)
    return admitted, None


def _files(
    preferences: Preferences, settings: Settings | None, malformed: Mapping[str, str], found: Survey
) -> tuple[File, ...]:
    """Return the files that decide what runs, and those that would if they were named or alone."""
    here, environment = Path.cwd(), preferences.environment
    wanted = [
        ("policy", environment.policy, "VLLM_IR_POLICY"),
        ("lock", environment.lock, "VLLM_IR_LOCK"),
    ]
    files = [
        surroundings.read_file(role, Path(value).expanduser(), variable, malformed.get(str(Path(value).expanduser())))
        for role, value, variable in wanted
        if value is not None
    ]
    told = {each.path for each in files}
    own = settings.file if settings else None
    # One that no variable names and that cannot be read is of the working folder.
    broken = [file for file in malformed if file not in told and file != str(own)]
    folder = [*filter(None, [own]), *map(Path, broken)]
    files[:0] = [
        surroundings.read_file("settings", file, "the working folder", malformed.get(str(file))) for file in folder
    ]
    if settings and settings.passed_over and str(settings.passed_over) not in malformed:
        other = surroundings.read_file("settings", settings.passed_over, "the working folder")
        files.append(replace(other, note=f"It is passed over, because {own} goes before it."))
    if environment.lock is None and (here / LOCK).exists():
        lock = surroundings.read_file("lock", here / LOCK, "the working folder; VLLM_IR_LOCK would enforce it")
        files.append(replace(lock, note=contents.hold_against(here / LOCK, found, preferences)))
    return tuple(files)


def _libraries(found: Survey) -> list[str]:
    """Return the names of all distributions of ours, hosts too, and of what providers require."""
    required = [
        name
        for each in found.providers
        if each.manifest
        for need in each.manifest.requires
        for name in need.distributions
    ]
    return [*(each.name for each in scan()), *required]
