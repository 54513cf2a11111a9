"""Probes of providers, each in a child process with a time limit, side by side up to the number of cores.

A child may crash, leave or hang: what it told before is kept, and the rest is a sentence. What a child does is left to
`probe`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.diagnosis.descendants import MARK, end_descendants, find_descendants
from vllm_ir.diagnosis.results import DONE, STARTING, ProbeResult, Target, how_it_ended, judge, parts_of, step_of
from vllm_ir.diagnosis.sayings import end_of, shorten, told_by_us
from vllm_ir.policy import DENY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vllm_ir.diagnosis.descendants import Process
    from vllm_ir.plugins.records import DistributionRecord
    from vllm_ir.plugins.static import Survey
    from vllm_ir.policy import Policy

TIMEOUT: Final = 20.0
"""Seconds that one step of a probe may take: loading, warming up one dtype, or running one op with one dtype."""

PATIENCE: Final = 3
"""How many times as long the first step may take, which imports torch and nothing of the provider."""

NOISE: Final = 10_000_000
"""Bytes that a provider may print before it is ended."""

_PAUSE: Final = 0.02
_LAST_WORDS: Final = 2.0
_KEPT: Final = ("VLLM_IR_CACHE",)
_FIRST: Final = (STARTING, "importing torch")


def targets(found: Survey, policy: Policy) -> tuple[Target, ...]:
    """Return every provider that may load, with what its process must not load beside it.

    Args:
        found: what is installed.
        policy: who may run what; what it denies is run in no process.
    """
    return tuple(
        Target(each.name, one.name, one.version, _denied(one, found, policy))
        for one in found.distributions
        for each in one.providers
        if each.usable and not policy.refuse(each.name, one.name)
    )


def _denied(one: DistributionRecord, found: Survey, policy: Policy) -> tuple[str, ...]:
    """Return all distributions but one, those whose ops or platform it needs apart, and what is denied of all."""
    ops = {op for each in one.providers for op in each.ops}
    platforms = {name for each in one.providers if each.manifest for name in each.manifest.platforms}
    names = [
        other.name
        for other in found.distributions
        if other.name != one.name
        and not (other.manifest and (ops.intersection(other.manifest.adds_ops) or other.manifest.platform in platforms))
    ]
    for each in found.providers:
        if policy.refuse(each.name, each.distribution):
            names.append(each.name)
        names += [f"{each.name}:{op}" for op in each.ops if policy.refuse(each.name, each.distribution, op)]
    return tuple(dict.fromkeys(names))


def probe(
    wanted: Sequence[Target],
    *,
    timeout: float = TIMEOUT,
    jobs: int | None = None,
    told: Callable[[ProbeResult], None] = lambda _: None,
) -> tuple[ProbeResult, ...]:
    """Run each provider in a child process of its own and return what came of each, in the order given.

    Args:
        wanted: the providers.
        timeout: seconds that one step may take.
        jobs: how many children at a time; one a core when None.
        told: called with each result when it is there.
    """
    results: dict[int, ProbeResult] = {}
    waiting = list(enumerate(wanted))
    running: list[tuple[int, _Child]] = []
    with tempfile.TemporaryDirectory(prefix="vllm-ir-probe-") as folder, _ending(running):
        while waiting or running:
            while waiting and len(running) < (jobs or _cores()):
                place, target = waiting.pop(0)
                running.append((place, _Child.start(target, Path(folder, str(place)), timeout)))
            for pair in list(running):
                if pair[1].ended():
                    running.remove(pair)
                    results[pair[0]] = pair[1].result()
                    told(results[pair[0]])
            time.sleep(_PAUSE)
    return tuple(results[place] for place in range(len(wanted)))


@contextlib.contextmanager
def _ending(running: list[tuple[int, _Child]]) -> Iterator[None]:
    """End every child that is still there at the end, as after an interrupt."""
    try:
        yield
    finally:
        for _, child in running:
            child.kill()


def _cores() -> int:
    """Return how many processes can run at once."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _variables(target: Target) -> dict[str, str]:
    """Return a child's environment: this one without what the operator asked of providers, which is not judged here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_IR_") or name in _KEPT}
    kept.pop("VLLM_BATCH_INVARIANT", None)
    path = [str(Path(each).absolute()) for each in sys.path]
    return {**kept, "PYTHONPATH": os.pathsep.join(path), DENY: ",".join(target.denied)}


@dataclass(slots=True)
class _Child:
    """A process that probes one provider.

    Attributes:
        folder: its working folder, empty but for what it tells and prints.
        killed: what that is called, and why it was ended, where we ended it.
        told: how much it had told when it last told something, and when that was.
        started: what it had started when we ended it.
    """

    target: Target
    folder: Path
    timeout: float
    process: subprocess.Popen[bytes]
    began: float
    killed: tuple[str, str] | None = None
    told: tuple[int, float] = field(default=(0, 0.0))
    started: frozenset[Process] = frozenset()

    @classmethod
    def start(cls, target: Target, folder: Path, timeout: float) -> _Child:
        """Start it."""
        # An empty folder of its own: no settings file holds there, and nothing in it is taken for a module.
        (folder / "in").mkdir(parents=True)
        (folder / "told").touch()
        with (folder / "printed").open("wb") as printed:
            process = subprocess.Popen(  # noqa: S603 - this interpreter and this module
                [sys.executable, "-X", "faulthandler", "-m", "vllm_ir.diagnosis.probe",
                 str(folder / "told"), target.distribution, target.provider],
                env={**_variables(target), MARK: str(folder)}, cwd=folder / "in", stdin=subprocess.DEVNULL,
                stdout=printed, stderr=printed, start_new_session=True,
            )  # fmt: skip
        now = time.monotonic()
        return cls(target, folder, timeout, process, now, told=(0, now))

    def ended(self) -> bool:
        """Tell whether it has ended, and end it where a step takes too long or it prints without end."""
        if self._gone():
            self.kill()
            return True
        size, now = (self.folder / "told").stat().st_size, time.monotonic()
        if size != self.told[0]:
            self.told = (size, now)
        limit = self.timeout * (PATIENCE if step_of(self.facts) in _FIRST else 1)
        if now - self.told[1] > limit:
            self.killed = "timed out", f"took more than {limit:g} seconds and was ended; --timeout gives it more"
        elif (self.folder / "printed").stat().st_size > NOISE:
            self.killed = "crashed", f"printed more than {NOISE // 1_000_000} MB and was ended"
        if self.killed is not None:
            self.started = find_descendants(self.process.pid, str(self.folder))
            self._let_it_say_where()
            self.kill()
        return self.killed is not None

    def _let_it_say_where(self) -> None:
        """Have Python's fault handler, which is on in every child, print where each thread is."""
        self.process.send_signal(signal.SIGABRT)
        until = time.monotonic() + _LAST_WORDS
        while not self._gone() and time.monotonic() < until:
            time.sleep(_PAUSE)

    def _gone(self) -> bool:
        """Tell whether it has ended, without taking its exit code: its number stays its own until `kill`."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """End it and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        end_descendants(self.process.pid, str(self.folder), self.started)
        self.process.wait()

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What it told so far, long lines cut; half a line, or what is none, is left out."""
        found = []
        for line in (self.folder / "told").read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                if isinstance(fact, dict):
                    found.append(shorten(fact))
        return found

    def result(self) -> ProbeResult:
        """Return what came of it."""
        facts, seconds = self.facts, time.monotonic() - self.began
        step, parts = step_of(facts), parts_of(facts)
        if self.killed is not None:
            kind, why = self.killed
            output = told_by_us(self._printed(), why)
            return ProbeResult(self.target, kind, seconds, step, f"{step}: it {why}.", parts, output=output)
        if step != DONE:
            reason = f"{step}: its process was ended by {how_it_ended(self.process.returncode)}."
            return ProbeResult(self.target, "crashed", seconds, step, reason, parts, output=self._printed())
        return judge(self.target, facts, seconds)

    def _printed(self) -> str:
        """Return the last lines that it printed."""
        with (self.folder / "printed").open("rb") as file:
            return end_of(file)
