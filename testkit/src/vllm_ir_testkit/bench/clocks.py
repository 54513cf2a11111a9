"""Taking the time of a run over a pool: `torch.utils.benchmark` on a CPU, events on a CUDA device."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.benchmark import Timer
from vllm_ir.generation import make_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_testkit.bench.pool import Pool

SHORTEST: Final = 4e-3
"""Seconds that a block takes at least, where the pool holds enough sets or sets may be used again."""

_PROBE: Final = 16
"""Sets of the run that tells how long a call takes."""


@dataclass(slots=True)
class Runner:
    """A function that calls an op with one set of a pool after the other, going on where it stopped.

    Attributes:
        call: the function to time.
        pool: its arguments.
        donates: whether it may write its inputs, which are then made fresh before each block.
        select: puts the provider first, before each block.
        run: makes one round of calls; made by `plan`.
        calls: how many calls a round makes.
        rounds: how many rounds make a block.
    """

    call: Callable[..., Any]
    pool: Pool
    donates: bool
    select: Callable[[], None]
    run: Callable[[], None] = field(init=False)
    calls: int = field(init=False)
    rounds: int = field(init=False)

    def __post_init__(self) -> None:
        """Plan for a short first run."""
        self.plan(min(_PROBE, len(self.pool.sets)), 1)

    def plan(self, calls: int, rounds: int) -> None:
        """Set how many calls a round makes and how many rounds a block takes."""
        self.calls, self.rounds = calls, rounds
        sets = self.pool.sets
        parts = [sets[i : i + calls] for i in range(0, len(sets) - calls + 1, calls)]
        names = ", ".join(f"a{i}" for i in range(len(self.pool.first)))
        # Arguments by name cost less than a tuple that is unpacked for each call.
        source = f"def run():\n    for {names}, in following():\n        call({names})"
        scope = {"following": itertools.cycle(parts).__next__, "call": self.call}
        self.run = make_function(source, "run", scope)

    def prepare(self) -> None:
        """Select the provider and make the inputs fresh; outside the timed region."""
        self.select()
        if self.donates:
            self.pool.refill()

    def calibrate(self, device: torch.device) -> None:
        """Warm up, and plan blocks that are long enough."""
        self.plan(min(_PROBE, len(self.pool.sets)), 1)
        once = seconds_per_call(self, device)
        calls = max(1, min(len(self.pool.sets), round(SHORTEST / max(once, 1e-9))))
        self.plan(calls, 1 if self.donates else max(1, round(SHORTEST / max(once * calls, 1e-9))))


def seconds_per_call(runner: Runner, device: torch.device) -> float:
    """Return the seconds of one call, taken over a block."""
    if device.type == "cuda":
        seconds = _by_events(runner)
    else:
        scope = {"run": runner.run, "prepare": runner.prepare}
        timer = Timer("run()", setup="prepare()", globals=scope, num_threads=torch.get_num_threads())
        seconds = float(timer.timeit(runner.rounds).raw_times[0])
    return seconds / (runner.rounds * runner.calls)


def _by_events(runner: Runner) -> float:
    """Return the seconds of a block on the current CUDA stream."""
    runner.prepare()
    runner.run()
    runner.prepare()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(runner.rounds):
        runner.run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3
