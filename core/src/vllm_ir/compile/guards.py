"""When a compiled graph may be used: while the priorities of the process are those that it was compiled by.

Dynamo asks before each call, so a change of them compiles anew and the way back does not. A scope is no reason to
compile: a graph keeps what held in the scope it was compiled in, and a call in another one is told so, once.
"""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from vllm_ir import runtime
from vllm_ir.compile import dynamo
from vllm_ir.log import logger
from vllm_ir.names import NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from vllm_ir.compile.plan import Plan
    from vllm_ir.dispatch import Candidate
    from vllm_ir.op import IrOp
    from vllm_ir.priority import Wish

Order = tuple[tuple[str, bool, object], ...]
"""What may be reached, in order: provider, whether it must run or raise, and its implementation."""

Wishes = dict[str, "tuple[Wish, ...]"]
"""What the scopes of a context want, by op; without the ops that none is open for."""

SETTLING: Final = 10
"""How often a plan is taken anew because a priority has changed meanwhile."""


def reached(candidates: Iterable[Candidate]) -> Order:
    """Return what of an order may be reached."""
    found: list[tuple[str, bool, object]] = []
    for candidate in candidates:
        if candidate.refusal is None:
            found.append((candidate.entry.provider, candidate.entry.required, candidate.impl))
            if candidate.unconditional and (candidate.entry.required or candidate.entry.provider == NATIVE):
                break
    return tuple(found)


def current_wishes() -> Wishes:
    """Return what the scopes of the current context want."""
    state = runtime.current()
    if not state.changes.scopes:
        return {}
    return {op.name: wishes for op in state.registry if (wishes := state.current_wishes(op))}


class ProcessOrders:
    """The orders of the process without any scope, each worked out once between two changes."""

    def __init__(self) -> None:
        self._epoch = -1
        self._orders: dict[str, Order] = {}

    def get(self, op: IrOp) -> Order:
        """Return the order of an op."""
        state = runtime.current()
        epoch, orders = self._epoch, self._orders
        if epoch != state.changes.epoch:
            # What another thread adds to the old ones meanwhile, nobody reads.
            epoch, orders = state.changes.epoch, {}
            self._orders, self._epoch = orders, epoch
        if op.name not in orders:
            orders[op.name] = reached(state.candidates(op, compiling=True))
        return orders[op.name]


_PROCESS: Final = ProcessOrders()


class Watch:
    """Holds one compiled graph against the priorities of the process, and against the scopes of whoever calls it.

    Args:
        graph: how Dynamo calls the graph.
        epoch: that of the process before anything else was read.
        plan: what the graph goes by.
        wishes: what the scopes wanted that it was compiled in.
        extra: by op, what goes before everything else in this graph.

    Attributes:
        ops: whose orders the graph depends on; all that the plan knows when None.
        fixed: those of them whose implementation is part of the graph, so that no scope reaches them; all when None.
    """

    def __init__(self, graph: str, epoch: int, plan: Plan, wishes: Wishes, extra: Mapping[str, Wish]) -> None:
        self.ops: set[str] | None = None
        self.fixed: set[str] | None = None
        self._graph = graph
        self._plan = plan
        self._wishes = wishes
        self._extra = extra
        self._orders = {name: _PROCESS.get(op) for name, op in plan.ops.items()}
        self._epoch = epoch
        self._holds = True
        self._warned = False
        self._harmless: list[Wishes] = [wishes]
        self._changes = runtime.current().changes
        self._others = itertools.count()

    @property
    def priority(self) -> str:
        """Something that is the same as long as the graph may be used; read by Dynamo before each call of it."""
        if self._epoch != self._changes.epoch and not dynamo.compiling():
            epoch = self._changes.epoch
            self._holds = not self._changed()
            self._epoch = epoch
        if not self._holds:
            # Never the same twice, so that nothing compiled meanwhile can be taken for this.
            return f"another one for {', '.join(self._changed())} ({next(self._others)})"
        if (self._changes.scopes or self._wishes) and not self._warned:
            self._compare_scopes()
        return self._plan.digest[:8]

    def _watched(self) -> Iterable[str]:
        """Return the ops whose orders the graph depends on."""
        return self._orders if self.ops is None else sorted(self.ops)

    def _changed(self) -> list[str]:
        """Return the ops that have another order than when the graph was compiled."""
        registry = runtime.current().registry
        return [
            name
            for name in self._watched()
            if name not in registry
            or registry.get(name) is not self._plan.ops[name]
            or _PROCESS.get(self._plan.ops[name]) != self._orders[name]
        ]

    def _compare_scopes(self) -> None:
        """Warn if the scopes of the current context want another provider in this graph."""
        wishes = current_wishes()
        if wishes in self._harmless or dynamo.compiling():
            return
        fixed = [op for op in self._watched() if self.fixed is None or op in self.fixed]
        differing = [op for op in fixed if self._order(op, wishes) != self._order(op, self._wishes)]
        if not differing:
            self._harmless.append(wishes)
            return
        self._warned = True
        then, now = (
            "; ".join(f"{op}={','.join(provider for provider, _, _ in self._order(op, each))}" for op in differing)
            for each in (self._wishes, wishes)
        )
        logger.warning(
            "graph %s was compiled in a context with the priority %s and keeps it, also for a call in one with %s."
            " vllm_ir.compile(model) compiles for each of them.",
            self._graph,
            then,
            now,
        )

    def _order(self, op: str, wishes: Mapping[str, tuple[Wish, ...]]) -> Order:
        """Return the order of an op under the scopes of a context."""
        wanted = wishes.get(op, ())
        if op in self._extra:
            wanted = (*wanted, self._extra[op])
        return reached(runtime.current().candidates(self._plan.ops[op], wanted, compiling=True))


def watch(take: Callable[[], Plan], graph: str, extra: Mapping[str, Wish] = MappingProxyType({})) -> tuple[Plan, Watch]:
    """Return the plan of the current context, with a guard of Dynamo's that the process still wants what it says.

    Args:
        take: takes the plan.
        graph: how Dynamo calls the graph that is being compiled.
        extra: by op, what goes before everything else in it.
    """
    changes = runtime.current().changes
    for _ in range(SETTLING):
        epoch, wishes = changes.epoch, current_wishes()
        plan = take()
        made = Watch(graph, epoch, plan, wishes, extra)
        if epoch == changes.epoch:
            break
    dynamo.add_guard(made, "priority")
    return plan, made
