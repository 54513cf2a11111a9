"""From ops to the implementations that run: selected on fake arguments, traced, and put in the place of each call."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_version
from vllm_ir.compile.aliases import Aliases
from vllm_ir.compile.clones import copy_argument, needing_copies
from vllm_ir.compile.functionalization import donated_inputs
from vllm_ir.compile.graph import arguments_of, calls_of, fake_arguments, source_of, tensors_of, value_of
from vllm_ir.compile.judging import Judge
from vllm_ir.compile.tracing import Traced, describe, results_of, sharing, splice, trace
from vllm_ir.errors import EndlessLowering, UntraceableImplementation
from vllm_ir.log import logger

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
            copied = needing_copies(node, args, op.activation_indices, donated, aliases) if impl.inplace else []
            function = impl.impl_fn
            functional: Callable[..., Any] | None = getattr(impl, "functional", None)
            if copied and functional is not None:
                function, copied = functional, []
            try:
                traced, args_now, copies = self._trace(graph, node, impl, function, args, copied)
            except Exception as error:  # noqa: BLE001 - whatever an implementation raises on fake tensors
                self._judge.untraceable(op, impl, error, source_of(node))
                refused.append(impl)
                continue
            break
        added, results = splice(graph, node, traced, args_now)
        readers = results_of(node, results)
        _check_results(op, impl, node, results)
        if impl.inplace and function is impl.impl_fn:
            for index in op.activation_indices:
                if index not in copied and hasattr(args[index], "meta"):
                    aliases.take(args[index])
        aliases.replace(node, [*copies, *added], [(old, new) for old, new in readers if hasattr(new, "meta")])
        for reader, result in readers:
            reader.replace_all_uses_with(result)
        for reader, _ in readers:
            if reader is not node:
                graph.erase_node(reader)
        graph.erase_node(node)
        self._done.copies += len(copies)
        self._done.selected.setdefault(op.name, {})[node.name] = impl.provider
        logger.debug(
            "graph node %s: %s runs %s%s", node.name, impl.provider, op.name, f", {len(copies)} copies" * bool(copies)
        )
        return added

    def _trace(
        self,
        graph: fx.Graph,
        node: fx.Node,
        impl: IrOpImpl,
        function: Callable[..., Any],
        args: list[Any],
        copied: list[int],
    ) -> tuple[Traced, list[Any], list[fx.Node]]:
        """Return an implementation as a graph, the arguments it gets there, and the copies put in for it."""
        values = list(fake_arguments(args))
        for index in copied:
            # As `copy_argument` will make it.
            values[index] = _copy_of(values[index])
        key = (impl.op_name, impl.provider, function is impl.impl_fn, *map(describe, values), sharing(values))
        traced = self._traces.get(key)
        if traced is None:
            traced = trace(function, values, self._table)
            self._traces[key] = traced
            self._done.traces += 1
        now, copies = list(args), []
        for index in copied:
            now[index] = copy_argument(graph, node, args[index])
            copies.append(now[index])
        return traced, now, copies


def _copy_of(value: Any) -> Any:
    """Return what a contiguous copy of a fake tensor is like."""
    import torch

    with torch_version.fake_mode_of(value) or torch.no_grad():
        return value.clone(memory_format=torch.contiguous_format)


def _check_results(op: IrOp, impl: IrOpImpl, node: fx.Node, results: list[Any]) -> None:
    """Raise if an implementation's results are of another kind than native's."""
    wanted = tensors_of(value_of(node))
    got = [tensor for result in results for tensor in (tensors_of(value_of(result)) if hasattr(result, "meta") else ())]
    told = [(str(t.dtype), torch_version.known_sizes(t)) for t in wanted]
    said = [(str(t.dtype), torch_version.known_sizes(t)) for t in got]
    if told != said:
        raise UntraceableImplementation(
            op=op.name,
            provider=impl.provider,
            cause=f"its results are {said}, native's are {told} (dtype and known sizes)",
            where=source_of(node),
        )
