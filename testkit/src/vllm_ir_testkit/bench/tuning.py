"""Trying the launches that a provider offers for each size, and keeping the fastest where the provider reads them.

A provider offers them through the entry-point group `vllm_ir.tuners`; what a launch is made of is its own business.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from vllm_ir import runtime

from vllm_ir_testkit import batch
from vllm_ir_testkit.bench.clocks import Runner, seconds_per_call
from vllm_ir_testkit.bench.measuring import Setting, pool_of, refusal, settings_of, wrong_values
from vllm_ir_testkit.bench.results import Timing
from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from vllm_ir import IrOp

    from vllm_ir_testkit.bench.requests import Size

GROUP: Final = "vllm_ir.tuners"
"""Entry points: the provider's name, and an object that is a `Tuner`."""

WORTH: Final = 0.97
"""The share of the time of the launch in use that another one may take at most; less is noise."""


class Tuner(Protocol):
    """What a provider offers to be tuned by. A candidate is any value; its text is shown."""

    def candidates(self, op: str, args: Sequence[Any]) -> Sequence[Any]:
        """Return the launches that may be tried for a call, the one in use first; none where there is no choice."""

    def using(self, candidate: Any) -> AbstractContextManager[None]:
        """Launch so while the context is open."""

    def keep(self, chosen: Sequence[Any], path: Path | None = None) -> Path:
        """Write launches to where the provider reads them, or to a file, and return where."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of one provider at one size.

    Attributes:
        op: the op's name.
        dtype: torch's name.
        size: tokens x hidden size.
        provider: the provider.
        before: the launch in use, in words; empty where nothing was tried.
        after: the fastest, in words.
        seconds: of either, by median; None where nothing was tried.
        tried: how many launches were timed.
        note: why nothing was tried, or which launches gave wrong values.
    """

    op: str
    dtype: str
    size: str
    provider: str
    before: str = ""
    after: str = ""
    seconds: tuple[float, float] | None = None
    tried: int = 0
    note: str = ""

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold; times in microseconds."""
        times = None if self.seconds is None else [round(each * 1e6, 3) for each in self.seconds]
        return {
            "op": self.op,
            "dtype": self.dtype,
            "size": self.size,
            "provider": self.provider,
            "before": self.before or None,
            "after": self.after or None,
            "median_us": times,
            "tried": self.tried,
            "note": self.note or None,
        }


def tuners(providers: Sequence[str]) -> dict[str, Tuner]:
    """Return what those of the providers offer that can be tuned; nothing of any other is imported."""
    found = {each.name: each for each in entry_points(group=GROUP)}
    return {name: found[name].load() for name in providers if name in found}


def tune(
    ops: Sequence[IrOp],
    offered: Mapping[str, Tuner],
    sizes: Sequence[Size],
    dtypes: Sequence[str],
    *,
    blocks: int = 9,
    path: Path | None = None,
    tell: Callable[[int, int, str], None] | None = None,
) -> tuple[tuple[Tuned, ...], tuple[Path, ...]]:
    """Time what providers offer, and keep what is faster than what they have.

    Args:
        ops: the ops.
        offered: the tuners, by provider.
        sizes: tokens and hidden sizes.
        dtypes: by torch's names.
        blocks: how many blocks each median is of.
        path: where to write; where the provider reads it when None.
        tell: called before each size with how many are done, how many there are, and what comes.

    Returns:
        what was found, and the files that were written.
    """
    device = torch.device(runtime.current().platform.device_type)
    steps = [
        (setting, provider)
        for setting in settings_of(ops, sizes, dtypes, device, functional=False)
        for provider in offered
    ]
    rows: list[Tuned] = []
    chosen: dict[str, list[Any]] = {}
    with torch.no_grad():
        for done, (setting, provider) in enumerate(steps):
            if tell is not None:
                tell(done, len(steps), f"{provider}: {setting.op.name} {setting.case.dtype} {setting.size}")
            row, candidate = _tune(setting, provider, offered[provider], blocks)
            rows.append(row)
            if candidate is not None:
                chosen.setdefault(provider, []).append(candidate)
    files = dict.fromkeys(offered[provider].keep(each, path) for provider, each in chosen.items())
    return tuple(rows), tuple(files)


def _tune(setting: Setting, provider: str, tuner: Tuner, blocks: int) -> tuple[Tuned, Any]:
    """Return what came of one provider at one size, and the launch to keep, or None."""
    base = Tuned(setting.op.name, setting.case.dtype, str(setting.size), provider)
    try:
        args = setting.case.build(setting.op, setting.device)
        wanted = batch.results(setting.op.impls["native"].impl_fn(*args))
    except Exception as error:  # noqa: BLE001 - whatever native or the generator raises, there is no such size
        return _noted(base, f"no such call: {in_words(error)}"), None
    reason = refusal(setting.op, provider, args)
    if reason is not None:
        return _noted(base, reason), None
    candidates = tuner.candidates(setting.op.name, args)
    if not candidates:
        return _noted(base, "offers no choice"), None
    runner = Runner(setting.call, pool_of(setting, args), setting.donate, lambda: setting.op.set_default([provider]))
    wrong: list[str] = []
    times: dict[Any, list[float]] = {}
    for candidate in candidates:
        with tuner.using(candidate):
            problem = wrong_values(setting, provider, wanted)
            if problem:
                wrong.append(f"{candidate}: {problem}")
                continue
            if not times:
                runner.calibrate(setting.device)
            times[candidate] = [seconds_per_call(runner, setting.device)]
    for _ in range(blocks - 1):  # in turn, so that a drift of the machine meets them alike
        for candidate, taken in times.items():
            with tuner.using(candidate):
                taken.append(seconds_per_call(runner, setting.device))
    medians = {candidate: Timing.of(taken).median for candidate, taken in times.items()}
    return _fastest(base, candidates[0], medians, "; ".join(wrong))


def _fastest(base: Tuned, now: Any, medians: dict[Any, float], note: str) -> tuple[Tuned, Any]:
    """Return what is shown of some times, and the launch to keep: the fastest, if it is worth it."""
    if not medians:
        return _noted(base, note), None
    best = min(medians, key=medians.__getitem__)
    if now in medians and medians[best] > WORTH * medians[now]:
        best = now
    before = medians.get(now, medians[best])
    row = Tuned(
        base.op,
        base.dtype,
        base.size,
        base.provider,
        str(now),
        str(best),
        (before, medians[best]),
        len(medians),
        note,
    )
    return row, (best if best != now else None)


def _noted(base: Tuned, note: str) -> Tuned:
    """Return a row with a note and no times."""
    return Tuned(base.op, base.dtype, base.size, base.provider, note=note)
