"""Plain `torch.compile`: Inductor sees into ops that native runs, and calls all others as they are.

No pass of ours runs there, so an op is taken apart while AOTAutograd records it. Which ops are is read once for each
graph, and is part of the key under which torch caches the graph, and a guard of the function that it belongs to; where
it is not, ops stay whole, because a whole op is right whatever holds when it runs.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from vllm_ir import dispatch, runtime
from vllm_ir.compile import torch_tracing, torch_version
from vllm_ir.compile.graph import tensors_of
from vllm_ir.compile.guards import watch
from vllm_ir.dispatch import BrokenPredicate
from vllm_ir.errors import IrError
from vllm_ir.log import logger
from vllm_ir.names import RESERVED
from vllm_ir.observation import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch._guards import TracingContext

    from vllm_ir.compile.plan import Plan
    from vllm_ir.dispatch import Candidate
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.priority import Entry
    from vllm_ir.verdict import Unsupported


class Choice:
    """What one graph goes by, read when the first asks: that is while torch works out the graph's key.

    Attributes:
        ops: those in the graph. A cache may have it, so that nobody asks which of them are inlined.
    """

    def __init__(self) -> None:
        self.ops: set[str] = set()
        self._fixed: set[str] = set()
        self._inlined: set[str] = set()
        self._plan: Plan | None = None
        self._read = False

    def plan(self) -> Plan | None:
        """Return the plan of the context that compiles; None where it cannot be had, which the call itself will say."""
        if not self._read:
            # Providers may be imported now, and no tensor that they make may be one of the graph.
            with torch_tracing.no_modes():
                self._take()
            self._read = True
        return self._plan

    def met(self, op: str, *, whole: bool) -> None:
        """Take note of what became of a call; a whole one asks the priority of its context when it runs."""
        self.ops.add(op)
        if not whole:
            self._inlined.add(op)
        elif op not in self._inlined:
            self._fixed.discard(op)

    def _take(self) -> None:
        """Read the plan of the current context, and let the graph be used only while the process still wants it."""
        from vllm_ir.compile.plan import Plan

        try:
            self._plan, watched = watch(Plan.take, torch_version.compile_id())
        except IrError as error:
            logger.debug("plain graph: every op stays whole: %s", error)
            return
        self._fixed.update(op for op, order in self._plan.orders.items() if _reaches_ours(order))
        watched.ops, watched.fixed = self.ops, self._fixed


def _reaches_ours(order: Iterable[Candidate]) -> bool:
    """Tell whether native, or an op's parts, is the first in an order to take some call."""
    usable = (candidate for candidate in order if candidate.refusal is None)
    first = next((candidate for candidate in usable if candidate.unconditional), None)
    return first is None or first.entry.provider in RESERVED


_choices: weakref.WeakKeyDictionary[TracingContext, Choice] = weakref.WeakKeyDictionary()
"""By the graph that is being compiled, each from when Dynamo first meets an op in it."""


class Tag(str):
    """The `cache_key_tag` that the user set; in the key of a graph with ops in it, what is inlined there follows.

    The text itself stays the user's, for it is also compared and put into names of files.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Return what stands for it in the key that torch works out for the graph at hand."""
        choice = _current()
        plan = None if choice is None else choice.plan()
        return str, (str(self) if plan is None else f"{self}|vllm_ir:{plan.digest}",)


def notice(op: str) -> None:
    """Take note that the graph that is being made holds an op of ours: its key will say what is inlined.

    Args:
        op: the op's name.
    """
    context = torch_tracing.tracing_context()
    # What only Inductor meets has its key already.
    if context is None or torch_tracing.inside_inductor():
        return
    if context not in _choices:
        _choices[context] = Choice()
        torch_tracing.wrap_cache_key_tag(Tag)
    _choices[context].ops.update(_with_parts(op))


def _with_parts(op: str) -> set[str]:
    """Return an op and the ops that it may be taken apart into, whose orders the graph may come to depend on."""
    registry = runtime.current().registry
    parts = registry.get(op).declaration.parts if op in registry else ()
    return {op}.union(*(_with_parts(part.name) for part in parts))


def expand(mode: Any, overload: Any, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a call as operations of torch if native is to run it, else NotImplemented.

    Args:
        mode: the mode that records the graph, not in force.
        overload: the torch op that is called.
        op: its name.
        args: fake tensors and numbers.
        kwargs: the same by name.
    """
    choice = _current()
    if choice is None or overload in torch_tracing.table_of(mode) or not torch_tracing.inside_inductor():
        return NotImplemented
    plan = choice.plan()
    found = None if plan is None else plan.ops.get(op)
    if plan is None or found is None or found.torch_op is not overload:
        return NotImplemented
    impl = inlined(plan, op, found.bind(args, kwargs))
    choice.met(op, whole=isinstance(impl, str))
    told = f"stays whole: {impl}" if isinstance(impl, str) else f"{impl.provider}, inlined"
    logger.debug("plain graph: op %s: %s", op, told)
    if isinstance(impl, str):
        return NotImplemented
    composition = impl.composition
    function = impl.impl_fn if composition is None else composition.over(composition.functional(), f"{op}_in_parts")
    with mode:
        return torch_tracing.functional(function)(*args, **kwargs)


def inlined(plan: Plan, op: str, args: Sequence[Any]) -> IrOpImpl | str:
    """Return what an op is inlined as in a graph: native, or its parts where it runs unfused; else why it is not.

    What cannot be told from fake tensors is left to the call, as is every error that the call would raise.

    Args:
        plan: the candidates.
        op: the op's name.
        args: all arguments by position; fake tensors and numbers.
    """
    if plan.batch_invariant:
        return "compiled code gives no batch invariance"
    shape_env = next((torch_version.shape_env_of(tensor) for tensor in tensors_of(tuple(args))), None)
    refusals: list[tuple[Entry, Unsupported]] = []
    for candidate in plan.orders[op]:
        impl = candidate.impl
        if impl is None or candidate.refusal is not None:
            continue
        with torch_version.no_new_guards(shape_env):
            refusal = dispatch.judge(impl, args)
        if refusal is None and impl.provider in RESERVED:
            _tell(op, refusals)
            return impl
        if refusal is None:
            return f"{impl.provider} takes it"
        if isinstance(refusal, BrokenPredicate):
            return f"{impl.provider} gives no verdict yet: {refusal}"
        if plan.strict and candidate.entry.required:
            return f"{impl.provider} refuses, and strict mode raises: {refusal}"
        refusals.append((candidate.entry, refusal))
    return "every candidate refuses"


def _tell(op: str, refusals: Sequence[tuple[Entry, Unsupported]]) -> None:
    """Record refusals as an eager call does, for the code that is generated asks nobody any more."""
    state = runtime.current()
    ledger = state.board(state.registry.get(op)).ledger
    for entry, refusal in refusals:
        Witness(ledger, entry, strict=False, trace=state.environment.trace, counters=state.counting).refused(refusal)


def keep_whole(*_args: Any, **_kwargs: Any) -> Any:
    """Stand in a table of decompositions for an op that is not to be taken apart."""
    return NotImplemented


def decompositions_without_ops(patches: Mapping[str, Any] | None = None) -> dict[Any, Callable[..., Any]]:
    """Return what Inductor takes apart while tracing, with our ops kept whole whoever runs them.

    The graph at hand is then compiled by somebody who has a key of its own for what becomes of them.

    Args:
        patches: the configuration that the graph is compiled under.
    """
    context = torch_tracing.tracing_context()
    if context is not None:
        _choices.pop(context, None)
    ops = {op.torch_op: keep_whole for op in runtime.current().registry}
    return {**torch_version.decompositions(patches), **ops}


def _current() -> Choice | None:
    """Return what the graph that is being compiled goes by, if it holds an op of ours."""
    context = torch_tracing.tracing_context()
    return None if context is None else _choices.get(context)
