"""Measuring: all contenders of one size in turn, block by block, so that a drift of the machine meets them alike."""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm_ir import runtime
from vllm_ir.dispatch import judge
from vllm_ir.names import NATIVE
from vllm_ir.op import IrOpInplace

from vllm_ir_testkit import batch, bounds
from vllm_ir_testkit.bench.clocks import Runner, seconds_per_call
from vllm_ir_testkit.bench.pool import Pool, cache_bytes
from vllm_ir_testkit.bench.results import Benchmark, Row, Timing
from vllm_ir_testkit.cases import Case
from vllm_ir_testkit.distance import compare
from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir import IrOp

    from vllm_ir_testkit.bench.requests import Size

COMPILED: Final = "native, compiled"
COPY: Final = "copy"
CLONE: Final = "clone"
"""Contenders that are no provider: native under Inductor, a copy into memory that is there, one into fresh memory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One op at one size.

    Attributes:
        op: the op.
        case: what its generator is asked.
        size: the size as it was written.
        device: where the tensors are.
        donate: whether `maybe_inplace` is timed, as a host that no longer needs its inputs calls.
        cache: bytes of the device's last cache.
    """

    op: IrOp
    case: Case
    size: Size
    device: torch.device
    donate: bool
    cache: int

    @property
    def row(self) -> Row:
        """A row for this setting, without contender and timing."""
        overload = "maybe_inplace" if self.donate else "default"
        return Row(self.op.name, overload, self.case.dtype, str(self.size), "", None)

    @property
    def call(self) -> Callable[..., Any]:
        """What a host calls."""
        return self.op.maybe_inplace if self.donate and isinstance(self.op, IrOpInplace) else self.op


def bench(
    ops: Sequence[IrOp],
    providers: Sequence[str],
    sizes: Sequence[Size],
    dtypes: Sequence[str],
    *,
    blocks: int = 9,
    compiled: bool = True,
    functional: bool = False,
    tell: Callable[[int, int, str], None] | None = None,
) -> Benchmark:
    """Time every provider that can run an op.

    Args:
        ops: the ops.
        providers: the providers, in the order in which they are shown.
        sizes: tokens and hidden sizes.
        dtypes: by torch's names.
        blocks: how many blocks each median is of.
        compiled: whether native under Inductor is timed too.
        functional: whether ops with a `maybe_inplace` are timed by their `default`.
        tell: called before each size with how many are done, how many there are, and what comes.
    """
    platform = runtime.current().platform
    device = torch.device(platform.device_type)
    settings = settings_of(ops, sizes, dtypes, device, functional=functional)
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    rows: list[Row] = []
    with torch.no_grad():
        for done, setting in enumerate(settings):
            if tell is not None:
                tell(done, len(settings), f"{setting.op.name} {setting.case.dtype} {setting.size}")
            rows += measure(setting, providers, blocks, compiled=compiled)
    name = platform.device_name if platform.devices else platform.name
    return Benchmark(
        tuple(rows), f"{device.type}, {name}", torch.get_num_threads(), str(torch.__version__), blocks, load
    )


def settings_of(
    ops: Sequence[IrOp], sizes: Sequence[Size], dtypes: Sequence[str], device: torch.device, *, functional: bool
) -> list[Setting]:
    """Return every op at every size in every dtype; arguments as `bench`."""
    cache = cache_bytes(device)
    return [
        Setting(op, Case(size.tokens, dtype, size.hidden), size, device, op.allow_inplace and not functional, cache)
        for op in ops
        for dtype in dtypes
        for size in sizes
    ]


def measure(setting: Setting, providers: Sequence[str], blocks: int, *, compiled: bool) -> list[Row]:
    """Return the rows of one setting, the contenders that did not run included."""
    try:
        args = setting.case.build(setting.op, setting.device)
        wanted = batch.results(setting.op.impls[NATIVE].impl_fn(*args))
    except Exception as error:  # noqa: BLE001 - whatever native or the generator raises, there is no such size
        return [replace(setting.row, contender="all", note=f"no such call: {in_words(error)}")]
    moved = traffic(setting, args, wanted)
    pool = pool_of(setting, args)
    runners: dict[str, Runner] = {}
    notes: dict[str, str] = {}
    for provider in dict.fromkeys([NATIVE, *providers]):
        reason = refusal(setting.op, provider, args)
        if reason is not None:
            notes[provider] = reason
            continue
        runners[provider] = Runner(setting.call, pool, setting.donate, partial(setting.op.set_default, [provider]))
        notes[provider] = wrong_values(setting, provider, wanted)
    if compiled:
        try:
            runners[COMPILED] = _compiled(setting, pool)
        except Exception as error:  # noqa: BLE001 - a compiler that fails costs its own row only
            notes[COMPILED] = in_words(error)
    runners |= _copies(setting, moved)
    timings = in_turn(runners, setting.device, blocks)
    base = replace(
        setting.row,
        bytes=moved,
        copy=_median(timings, COPY),
        native=_median(timings, NATIVE),
        compiled=_median(timings, COMPILED),
    )
    shown = [*providers, *([COMPILED] if compiled else []), COPY, CLONE]
    return [replace(base, contender=name, timing=timings.get(name), note=notes.get(name, "")) for name in shown]


def refusal(op: IrOp, provider: str, args: Sequence[Any]) -> str | None:
    """Return why a provider does not run a call, or None."""
    impl = op.impls.get(provider)
    if impl is None:
        return runtime.current().landscape.unusable.get(provider, f"has no {op.name}")
    if impl.supported is not True:
        return str(impl.supported or "declared as not supported here")
    refused = judge(impl, args)
    return None if refused is None else refused.reason


def traffic(setting: Setting, args: Sequence[Any], results: Sequence[torch.Tensor]) -> int:
    """Return the bytes that a call reads and writes at least.

    Of what does not grow with the tokens, such as a table of angles, no more than the activations' bytes count.
    """
    growing = {each.argument for each in batch.of_inputs(setting.op, setting.case.keywords(setting.op))}
    tensors = [(i, x.nbytes) for i, x in enumerate(args) if isinstance(x, torch.Tensor)]
    activations = sum(size for i, size in tensors if i in growing)
    others = sum(min(size, activations) for i, size in tensors if i not in growing)
    return activations + others + sum(x.nbytes for x in results)


def pool_of(setting: Setting, args: Sequence[Any]) -> Pool:
    """Return the sets of arguments; what does not grow with the tokens is one for all, as weights are."""
    growing = {each.argument for each in batch.of_inputs(setting.op, setting.case.keywords(setting.op))}
    shared = [i for i in range(len(args)) if i not in growing]
    donated = setting.op.activation_indices if setting.donate else ()
    return Pool.make(args, shared, donated, setting.cache)


def wrong_values(setting: Setting, provider: str, wanted: Sequence[torch.Tensor]) -> str:
    """Return what is wrong with a provider's result, or nothing: a fast wrong kernel is none."""
    setting.op.set_default([provider])
    try:
        got = batch.results(setting.call(*setting.case.build(setting.op, setting.device)))
    except Exception as error:  # noqa: BLE001 - a kernel that raises is shown as such
        return f"raised {in_words(error)}"
    for a, b in zip(got, wanted, strict=True):
        atol, rtol = bounds.tolerance(setting.op, b.dtype, tiny=False)
        what = bounds.complaint(compare(a, b, atol, rtol), b.dtype, exact=bounds.is_exact(setting.op, b.dtype))
        if what is not None:
            return f"not native's values: {what}"
    return ""


def _compiled(setting: Setting, pool: Pool) -> Runner:
    """Return a runner of native under Inductor, compiled for this size."""
    # A new graph for each size would hit Dynamo's limit of recompilations, behind which everything is eager.
    torch.compiler.reset()
    compiled = torch.compile(setting.op.impls[NATIVE].impl_fn, fullgraph=True, dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(*pool.sets[0])
    return Runner(compiled, pool, donates=False, select=_nothing)


def _copies(setting: Setting, moved: int) -> dict[str, Runner]:
    """Return runners that copy as many bytes as a call moves, half read and half written."""
    source = torch.empty(max(moved // 2, 1), dtype=torch.uint8, device=setting.device)
    pool = Pool.make((source, source.clone()), (), (), setting.cache)
    alone = Pool.make((source,), (), (), setting.cache)
    return {
        COPY: Runner(lambda a, b: b.copy_(a), pool, donates=False, select=_nothing),
        CLONE: Runner(torch.clone, alone, donates=False, select=_nothing),
    }


def in_turn(runners: dict[str, Runner], device: torch.device, blocks: int) -> dict[str, Timing]:
    """Return the timing of every runner, their blocks taken in turn."""
    taken: dict[str, list[float]] = {}
    for name, runner in runners.items():
        with contextlib.suppress(RuntimeError, TypeError, ValueError):  # the note says what it raises
            runner.calibrate(device)
            taken[name] = []
    for _ in range(blocks):
        for name, blocks_of in taken.items():
            blocks_of.append(seconds_per_call(runners[name], device))
    return {name: Timing.of(blocks_of) for name, blocks_of in taken.items()}


def _median(timings: dict[str, Timing], name: str) -> float | None:
    """Return a contender's median, or None where it did not run."""
    found = timings.get(name)
    return None if found is None else found.median


def _nothing() -> None:
    """Stand for the selection of what is no provider."""
