"""A run over a pool, and what is timed of it."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from vllm_ir_testkit.bench.clocks import Runner, seconds_per_call
from vllm_ir_testkit.bench.pool import Pool

CPU = torch.device("cpu")


def pool_of(count: int) -> Pool:
    """Return a pool of numbered sets."""
    sets: list[tuple[Any, ...]] = [(torch.tensor([float(i)]), i) for i in range(count)]
    return Pool(sets, sets[0], (0,), 4 * count)


def test_rounds_go_on_where_the_last_one_stopped() -> None:
    """No set is used twice before all were used once."""
    seen: list[int] = []
    runner = Runner(lambda _, i: seen.append(i), pool_of(6), donates=False, select=lambda: None)
    runner.plan(calls=2, rounds=1)
    for _ in range(4):
        runner.run()
    assert seen == [0, 1, 2, 3, 4, 5, 0, 1]


def test_a_call_is_timed_and_nothing_else() -> None:
    """Selecting and refilling, however slow, are outside the timed region."""
    prepared: list[float] = []

    def select() -> None:
        """Take long."""
        prepared.append(0)
        time.sleep(0.05)

    runner = Runner(lambda *_: time.sleep(0.002), pool_of(2), donates=True, select=select)
    runner.plan(calls=2, rounds=1)
    assert 0.002 <= seconds_per_call(runner, CPU) < 0.02
    assert prepared


def test_donated_inputs_are_fresh_in_every_timed_round() -> None:
    """A call that writes its input finds the first values, and there is one round only."""
    found: list[float] = []

    def call(x: torch.Tensor, _: int) -> None:
        """Note and spoil."""
        found.append(float(x))
        x.fill_(-1)

    pool = Pool.make((torch.tensor([3.0]), 0), [1], [0], cache=1)
    runner = Runner(call, pool, donates=True, select=lambda: None)
    runner.calibrate(CPU)
    assert runner.rounds == 1
    found.clear()
    runner.prepare()
    runner.run()
    assert set(found) == {3.0}


@pytest.mark.parametrize("seconds", [0.0, 0.003])
def test_blocks_are_long_enough(seconds: float) -> None:
    """A fast call is made often, a slow one once or twice."""
    runner = Runner(lambda *_: time.sleep(seconds) if seconds else None, pool_of(8), donates=False, select=lambda: None)
    runner.calibrate(CPU)
    assert (runner.rounds * runner.calls > 100) is (seconds == 0.0)
