"""What ran, and why: the answers to "which kernel" in one value for programs and in lines for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir import runtime

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir.graphs import GraphRecord
    from vllm_ir.op import IrOp
    from vllm_ir.priority import Entry
    from vllm_ir.verdict import Explanation


@dataclass(frozen=True, slots=True)
class OpReport:
    """What became of one op so far.

    Attributes:
        op: the op's name.
        priority: the order with its layers, as it holds in the current context.
        calls: how many calls each provider ran; empty unless VLLM_IR_COUNTERS=1.
        refusals: provider, reason and how often; plain refusals count only with VLLM_IR_COUNTERS=1.
        graphs: in how many compiled graphs each provider runs the op; calls of those graphs are not counted.
    """

    op: str
    priority: tuple[Entry, ...]
    calls: Mapping[str, int]
    refusals: tuple[tuple[str, str, int], ...]
    graphs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What became of every op so far.

    Attributes:
        ops: by name.
        counting: whether calls are counted.
        graphs: the graphs that were compiled by the backend vllm_ir, oldest first; the last thousand.
    """

    ops: Mapping[str, OpReport]
    counting: bool
    graphs: tuple[GraphRecord, ...] = ()

    def __str__(self) -> str:
        """Return a few lines per op, and per graph."""
        lines: list[str] = [] if self.counting else ["Calls are not counted; set VLLM_IR_COUNTERS=1 before start."]
        for op in self.ops.values():
            order = ", ".join(f"{entry.provider} [{entry.source}]" for entry in op.priority)
            calls = ", ".join(f"{provider} {count}" for provider, count in op.calls.items()) or "none"
            graphs = ", ".join(f"{provider} in {count}" for provider, count in op.graphs.items())
            lines.append(f"{op.op}: order {order}; calls {calls}" + (f"; graphs {graphs}" if graphs else ""))
            lines += [f"  {provider} refused {count}x: {reason}" for provider, reason, count in op.refusals]
        return "\n".join([*lines, *map(str, self.graphs)])


@dataclass(frozen=True, slots=True)
class Tally:
    """What is counted so far, op by op; all of it only ever grows.

    Attributes:
        calls: how many calls each provider ran, by op and provider.
        refusals: how often each provider refused, by op, provider and reason.
        graphs: in how many compiled graphs each provider runs an op, by op and provider.
    """

    calls: Mapping[tuple[str, str], int]
    refusals: Mapping[tuple[str, str, str], int]
    graphs: Mapping[tuple[str, str], int]


def tally() -> Tally:
    """Return what this process has counted so far; nothing is discovered and no configuration is read for it."""
    state = runtime.current()
    ops = list(state.registry)
    ledgers = {op.name: state.board(op).ledger for op in ops}
    return Tally(
        calls={(op, provider): count for op, each in ledgers.items() for provider, count in each.calls().items()},
        refusals={
            (op, provider, reason): count for op, each in ledgers.items() for provider, reason, count in each.refusals()
        },
        graphs={(op.name, provider): count for op in ops for provider, count in state.graphs.counts(op.name).items()},
    )


def report() -> Report:
    """Return what became of every registered op, and of every compiled graph, so far in this process.

    Raises:
        ConfigurationError: a layer's list cannot be read.
    """
    state = runtime.current()
    state.load()
    ops: dict[str, OpReport] = {}
    for op in state.registry:
        ledger = state.board(op).ledger
        entries = tuple(c.entry for c in state.candidates(op, state.current_wishes(op)))
        ops[op.name] = OpReport(op.name, entries, ledger.calls(), ledger.refusals(), state.graphs.counts(op.name))
    return Report(ops, state.counting, state.graphs.all())


def explain(op: str | IrOp, *args: Any, compiling: bool = False, **kwargs: Any) -> Explanation:
    """Return every candidate of an op in order with its layer, and why it is refused.

    Args:
        op: an op or its name.
        args: arguments of a call; without any, only what holds for every call is judged.
        compiling: whether to answer for a graph that Inductor compiles.
        kwargs: arguments of a call by name.

    Raises:
        UnknownOp: there is no op of that name.
        WrongCall: the arguments do not fit the op's signature.
    """
    state = runtime.current()
    state.load()
    found = state.registry.get(op) if isinstance(op, str) else op
    return found.explain(*args, compiling=compiling, **kwargs)
