"""From ops to the implementations that run: selected on fake arguments, traced, and put in the place of each call."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.aliases import Aliases
from vllm_ir.compile.clones import copy_argument, copy_of, needing_copies
from vllm_ir.compile.functionalization import donated_inputs, hand_on
from vllm_ir.compile.graph import (
    arguments_of,
    calls_of,
    contiguous,
    fake_arguments,
    results_of,
    source_of,
    tensors_of,
    value_of,
)
from vllm_ir.compile.judging import Judge, batch_sizes
from vllm_ir.compile.tracing import Traced, describe, inputs_of, sharing, splice, trace
from vllm_ir.compile.writes import written_inputs
from vllm_ir.errors import EndlessLowering, UndeclaredWrite, WrongResults
from vllm_ir.names import NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from vllm_ir.compile.plan import Plan
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp

DEPTH: Final = 16
"""How deep implementations may call ops of other implementations."""


@dataclass(slots=True)
class Lowered:
    """What lowering one graph came to.

    Attributes:
        selected: by op and node, who runs it.
        refusals: op, provider, reason and how often.
        copies: how many copies of activations were needed.
        traces: how many implementations were traced.
        seconds: how long it took.
    """

    selected: dict[str, dict[str, str]] = field(default_factory=dict)
    refusals: dict[tuple[str, str, str], int] = field(default_factory=dict)
    copies: int = 0
    traces: int = 0
    seconds: float = 0.0

    @property
    def changes(self) -> int:
        """How many calls were replaced."""
        return sum(map(len, self.selected.values()))

    def joined(self, other: Lowered) -> Lowered:
        """Return this with what lowering another part of the same graph came to."""
        selected = {op: dict(nodes) for op, nodes in self.selected.items()}
        for op, nodes in other.selected.items():
            mine = selected.setdefault(op, {})
            for node, provider in nodes.items():
                # Parts of a graph name their nodes alike.
                number = sum(name.partition("#")[0] == node for name in mine)
                mine[f"{node}#{number + 1}" if number else node] = provider
        refusals = {
            key: self.refusals.get(key, 0) + other.refusals.get(key, 0) for key in {**self.refusals, **other.refusals}
        }
        sums = (self.copies + other.copies, self.traces + other.traces, self.seconds + other.seconds)
        return Lowered(selected, refusals, *sums)


class Lowering:
    """Replaces every call of an op in a graph.

    Args:
        plan: who may run what.
        table: what is taken apart while an implementation is traced.
        donating: whether the caller's donations count; they do not in a graph that is differentiated.
    """

    def __init__(self, plan: Plan, table: Mapping[Any, Callable[..., Any]], *, donating: bool) -> None:
        self._plan = plan
        self._table = table
        self._donating = donating
        self._calls = calls_of(plan.ops)
        self._traces: dict[object, Traced] = {}
        self._judge = Judge(plan)
        self._done = Lowered()

    def apply(self, graph: fx.Graph) -> Lowered:
        """Replace every call in a graph and return what was done.

        Args:
            graph: functional, with fake results in each node's metadata.

        Raises:
            SelectionError: nothing may run a call, or what a user named cannot.
            BatchGuard: a predicate asks for a size that changes.
        """
        start = time.perf_counter()
        waiting: list[tuple[fx.Node, tuple[str, ...]]] = [
            (node, (self._op(node).name,)) for node in graph.nodes if self._is_call(node)
        ]
        if waiting:
            aliases = Aliases(graph)
            waiting.reverse()
            while waiting:
                node, chain = waiting.pop()
                op = self._op(node)
                if len(chain) > DEPTH:
                    raise EndlessLowering(op=op.name, chain=chain)
                added = self._replace(graph, node, op, aliases)
                # An implementation may be written with other ops.
                inner = [(new, (*chain, self._op(new).name)) for new in added if self._is_call(new)]
                waiting.extend(reversed(inner))
        self._done.seconds = time.perf_counter() - start
        self._done.refusals = self._judge.refusals
        return self._done

    def _is_call(self, node: fx.Node) -> bool:
        """Tell whether a node calls an op."""
        return node.op == "call_function" and node.target in self._calls

    def _op(self, node: fx.Node) -> IrOp:
        """Return the op that a node calls."""
        return self._calls[node.target][0]

    def _replace(self, graph: fx.Graph, node: fx.Node, op: IrOp, aliases: Aliases) -> list[fx.Node]:
        """Put the selected implementation in the place of a call and return what was added."""
        args = list(arguments_of(node, op))
        donated = donated_inputs(node, op) if self._donating else ()
        refused: list[IrOpImpl] = []
        while True:
            impl = self._judge.select(op, fake_arguments(args), without=refused, where=source_of(node))
            function, copied = self._function(op, impl), []
            if impl.inplace and function is impl.impl_fn:
                copied = needing_copies(node, args, op.activation_indices, donated, aliases)
            if copied and impl.functional is not None:
                function, copied = impl.functional, []
            try:
                args, added, results = self._insert(graph, node, impl, function, args, copied)
            except Exception as error:  # noqa: BLE001 - whatever an implementation raises on fake tensors
                self._judge.untraceable(op, impl, error, source_of(node))
                refused.append(impl)
                continue
            break
        if impl.inplace and function is impl.impl_fn:
            # What was written to belongs to the results now.
            for index in op.activation_indices:
                aliases.take(args[index])
        aliases.replace(added, [])
        hand_on(added, self._plan.ops, [args[index] for index in donated], aliases)
        results, more = _own(graph, node, results, aliases)
        readers = results_of(node, results)
        aliases.replace([], readers)
        _put_in_place(graph, node, readers)
        self._done.copies += len(copied) + len(more)
        self._done.selected.setdefault(op.name, {})[node.name] = impl.provider
        return added

    def _function(self, op: IrOp, impl: IrOpImpl) -> Callable[..., Any]:
        """Return what is put in the place of a call that an implementation takes."""
        if impl.composition is not None:
            # Its parts become calls of their own, and copies are made where those need them.
            return impl.composition.over(impl.composition.functional(), f"{op.name}_in_parts")
        return op.native_torch_op if self._stays_whole(impl) else impl.impl_fn

    def _stays_whole(self, impl: IrOpImpl) -> bool:
        """Tell whether the compiler must not see into native: it would not keep what the plan asks for.

        Inductor sums a row in an order of its own, which depends on the batch and moves a unit in the last place.
        """
        return impl.provider == NATIVE and (self._plan.batch_invariant or self._plan.exact)

    def _insert(
        self,
        graph: fx.Graph,
        node: fx.Node,
        impl: IrOpImpl,
        function: Callable[..., Any],
        args: list[Any],
        copied: list[int],
    ) -> tuple[list[Any], list[fx.Node], list[Any]]:
        """Put an implementation before a call; return the arguments it gets there, what was added, and its results."""
        values = list(fake_arguments(args))
        for index in copied:
            values[index] = copy_of(values[index])
        key = (impl.op_name, impl.provider, function is impl.impl_fn, *map(describe, values), sharing(values))
        traced = self._traces.get(key)
        first = traced is None or traced.once
        if traced is None or traced.once:
            # A kernel chosen by the size of one batch would run them all; native alone has nobody behind it.
            batch: frozenset[str] = frozenset() if impl.provider == NATIVE else batch_sizes(values)
            open_sizes = next(map(torch_version.shape_env_of, tensors_of(values)), None)
            with torch_version.no_guards_on(open_sizes, batch), torch_sizes.forgetting_sizes(open_sizes):
                traced = trace(function, values, self._table)
            _check_results(value_of(node), traced)
            _check_writes(self._plan.ops[impl.op_name], impl, function, args, traced)
            self._traces[key] = traced
            self._done.traces += 1
        now = list(args)
        for index in copied:
            now[index] = copy_argument(graph, node, args[index], values[index])
        added, results = splice(graph, node, traced, now, first=first)
        return now, [*(now[index] for index in copied), *added], results


def _put_in_place(graph: fx.Graph, node: fx.Node, readers: list[tuple[fx.Node, Any]]) -> None:
    """Take a call out, after each node that holds a result of it has been replaced by the one beside it."""
    for old, new in readers:
        old.replace_all_uses_with(new)
    for old, _ in readers:
        if old is not node:
            graph.erase_node(old)
    for whole in list(node.users):  # what took a list of results out
        graph.erase_node(whole)
    graph.erase_node(node)


def _own(graph: fx.Graph, node: fx.Node, results: list[Any], aliases: Aliases) -> tuple[list[Any], list[fx.Node]]:
    """Return the results of a call, each contiguous where native's is and in memory that nobody else reads, and copies.

    An implementation may return an argument, the same tensor twice, or a part of a larger one.
    """
    made: list[fx.Node] = []
    found: list[fx.Node] = []

    def own(result: Any, wanted: Any) -> Any:
        """Return one result, or a list of results, in memory of its own."""
        if isinstance(result, list):
            return [own(each, one) for each, one in zip(result, wanted, strict=True)]
        odd = contiguous(wanted) and not contiguous(value_of(result))
        if odd or result in found or aliases.owned_by_caller(result) or aliases.used_after(result, node):
            result = copy_argument(graph, node, result)
            aliases.replace([result], [])
            made.append(result)
        found.append(result)
        return result

    value = value_of(node)
    return own(results, list(value) if isinstance(value, (tuple, list)) else [value]), made


def _check_results(value: Any, traced: Traced) -> None:
    """Raise if an implementation's results are of another kind than native's.

    Args:
        value: the fake result of native, or a tuple or a list of them.
        traced: the implementation.

    Raises:
        WrongResults: they are.
    """
    got = [_kind(result) for result in traced.results]
    told = [_kind(result) for result in (value if isinstance(value, (tuple, list)) else [value])]
    if told != got:
        raise WrongResults(got=got, wanted=told)


def _check_writes(op: IrOp, impl: IrOpImpl, function: Callable[..., Any], args: list[Any], traced: Traced) -> None:
    """Raise if an implementation writes to an argument that it did not say it would.

    Raises:
        UndeclaredWrite: it does.
    """
    allowed = op.activation_indices if impl.inplace and function is impl.impl_fn else ()
    written = written_inputs(traced.module.graph)
    # What is traced takes the tensors of the arguments one by one.
    place = 0
    for index, value in enumerate(args):
        count = len(inputs_of([value]))
        if index not in allowed and written & set(range(place, place + count)):
            raise UndeclaredWrite(argument=op.declaration.signature.names[index], functional=impl.inplace)
        place += count


def _kind(value: Any) -> str:
    """Return dtype and sizes of a tensor: of those that are open what they were, and a question mark for data's."""
    import torch

    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_kind, value))}]"
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    known = map(torch_sizes.hint_of, value.shape)
    sizes = ", ".join("?" if size is None else str(size) for size in known)
    return f"{value.dtype}[{sizes}]"
