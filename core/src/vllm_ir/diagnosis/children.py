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

from vllm_ir.diagnosis.probe import DIFFERS, RAISES, REFUSES
from vllm_ir.errors import DeniedByPolicy
from vllm_ir.plugins.policy import DENY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vllm_ir.plugins.records import DistributionRecord
    from vllm_ir.plugins.static import Survey

TIMEOUT: Final = 20.0
"""Seconds that one step of a probe may take: loading, warming up one dtype, or running one op with one dtype."""

STARTING: Final = 3
"""How many times as long the first step may take, which imports torch and nothing of the provider."""

NOISE: Final = 10_000_000
"""Bytes that a provider may print before it is ended."""

_LINES: Final = 40
_PAUSE: Final = 0.02
_KEPT: Final = ("VLLM_IR_CACHE",)
_FIRST: Final = ("starting", "importing torch")


@dataclass(frozen=True, slots=True)
class Target:
    """A provider to run.

    Attributes:
        provider: its name.
        distribution: the distribution that brings it.
        version: of the distribution.
        denied: what its process must not load: everything that it does not need.
    """

    provider: str
    distribution: str
    version: str
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What came of running one provider.

    Attributes:
        target: which.
        outcome: "runs", "refuses", "differs", "fails", "crashed", or "timed out".
        seconds: how long its process lived.
        step: what it did last.
        reason: in a sentence, what somebody has to mend; None for the first two outcomes.
        parts: for each op and dtype, and each warm-up: `what dtype outcome reason traceback`.
        traceback: of what it raised.
        output: the last lines that it printed, where it ended by itself or was ended.
    """

    target: Target
    outcome: str
    seconds: float
    step: str
    reason: str | None = None
    parts: tuple[Mapping[str, Any], ...] = ()
    traceback: str | None = None
    output: str = ""

    @property
    def fault(self) -> bool:
        """Whether somebody has to mend something."""
        return self.reason is not None

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "provider": self.target.provider,
            "distribution": self.target.distribution,
            "version": self.target.version,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 1),
            "step": self.step,
            "reason": self.reason,
            "parts": [dict(part) for part in self.parts],
            "traceback": self.traceback,
            "output": self.output,
        }


def targets(found: Survey) -> tuple[Target, ...]:
    """Return every provider that may load, with what its process must not load beside it."""
    return tuple(
        Target(each.name, one.name, one.version, _denied(one, found))
        for one in found.distributions
        for each in one.providers
        if each.usable
    )


def _denied(one: DistributionRecord, found: Survey) -> tuple[str, ...]:
    """Return all other distributions, apart from those whose ops or platform this one needs, and what is denied."""
    ops = {op for each in one.providers for op in each.ops}
    platforms = {name for each in one.providers if each.manifest for name in each.manifest.platforms}
    names = [
        other.name
        for other in found.distributions
        if other.name != one.name
        and not (other.manifest and (ops.intersection(other.manifest.adds_ops) or other.manifest.platform in platforms))
    ]
    kind = DeniedByPolicy.kind
    return (*names, *(each.name for each in found.providers if each.failure and each.failure.kind == kind))


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
        killed: why it was ended, where we ended it.
        told: how much it had told when it last told something, and when that was.
    """

    target: Target
    folder: Path
    timeout: float
    process: subprocess.Popen[bytes]
    began: float
    killed: str | None = None
    told: tuple[int, float] = field(default=(0, 0.0))

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
                env=_variables(target), cwd=folder / "in", stdin=subprocess.DEVNULL,
                stdout=printed, stderr=printed, start_new_session=True,
            )  # fmt: skip
        now = time.monotonic()
        return cls(target, folder, timeout, process, now, told=(0, now))

    def ended(self) -> bool:
        """Tell whether it has ended, and end it where a step takes too long or it prints without end."""
        # Looked at without taking its exit code, so that its number stays its own until what it left behind is ended.
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.kill()
            return True
        size, now = (self.folder / "told").stat().st_size, time.monotonic()
        if size != self.told[0]:
            self.told = (size, now)
        limit = self.timeout * (STARTING if self.step in _FIRST else 1)
        if now - self.told[1] > limit:
            self.killed = f"took more than {limit:g} seconds and was ended; --timeout gives it more"
        elif (self.folder / "printed").stat().st_size > NOISE:
            self.killed = f"printed more than {NOISE // 1_000_000} MB and was ended"
        if self.killed is not None:
            self.kill()
        return self.killed is not None

    def kill(self) -> None:
        """End it and whatever it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def facts(self) -> list[dict[str, Any]]:
        """What it told so far; half a line, or what is none, is left out."""
        found = []
        for line in (self.folder / "told").read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                if isinstance(fact, dict):
                    found.append(fact)
        return found

    @property
    def step(self) -> str:
        """What it began last."""
        return next((str(fact["step"]) for fact in reversed(self.facts) if "step" in fact), _FIRST[0])

    def result(self) -> ProbeResult:
        """Return what came of it."""
        facts, step, seconds = self.facts, self.step, time.monotonic() - self.began
        parts = tuple(fact["result"] for fact in facts if isinstance(fact.get("result"), dict))
        failure = next((fact["failure"] for fact in facts if isinstance(fact.get("failure"), dict)), None)
        if self.killed is not None:
            outcome = "timed out" if "seconds" in self.killed else "crashed"
            return ProbeResult(
                self.target, outcome, seconds, step, f"{step}: it {self.killed}.", parts, output=self._printed()
            )
        if step != "done":
            reason = f"{step}: its process was ended by {_how_it_ended(self.process.returncode)}."
            return ProbeResult(self.target, "crashed", seconds, step, reason, parts, output=self._printed())
        if failure is not None:
            reason, trace = str(failure.get("reason")), failure.get("traceback")
            return ProbeResult(self.target, "fails", seconds, "loading", reason, parts, trace)
        return self._judged(parts, seconds)

    def _judged(self, parts: tuple[dict[str, Any], ...], seconds: float) -> ProbeResult:
        """Return what came of a child that reached its end."""
        raised = [part for part in parts if part["outcome"] == RAISES]
        differing = [part for part in parts if part["outcome"] == DIFFERS]
        worst = raised or differing
        if not worst:
            ran = not parts or any(part["outcome"] != REFUSES for part in parts)
            return ProbeResult(self.target, "runs" if ran else "refuses", seconds, "done", None, parts)
        first, more = worst[0], len(raised) + len(differing) - 1
        what = ", ".join(filter(None, [first["what"], first["dtype"]]))
        verb = "raised" if raised else "differs from native:"
        others = f" ({more} more below)" if more else ""
        reason = f"{what}: it {verb} {first['reason']}{others}"
        outcome = "fails" if raised else "differs"
        return ProbeResult(self.target, outcome, seconds, "done", reason, parts, first["traceback"])

    def _printed(self) -> str:
        """Return the last lines that it printed."""
        with (self.folder / "printed").open("rb") as file:
            file.seek(max(0, (self.folder / "printed").stat().st_size - 100 * _LINES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-_LINES:])


def _how_it_ended(code: int) -> str:
    """Return an exit code in words."""
    if code >= 0:
        return f"exit code {code} before it had done its work"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
