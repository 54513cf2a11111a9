"""How a graph is changed for sequence parallelism, once it is decided which all-reduces are taken apart.

Calls that work row by row stay where they are and get a part of the rows; who needs all of them reads what is gathered
behind. A quantisation behind a norm moves in front of the gathering where that makes it smaller.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.graph import value_of
from vllm_ir.compile.passes.collectives import Group, Misses, Reduction, fake_result, functional, insert
from vllm_ir.compile.passes.sequence_parallel_rows import RowCall, RowOps, obstacle
from vllm_ir.compile.passes.sequence_parallel_views import (
    FLAT,
    as_rows,
    base_of,
    is_row_view,
    open_sizes,
    readers,
    size_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import fx


class Rewrite:
    """Changes one graph.

    Args:
        graph: functional, with fake results in each node's metadata.
        group: whose ranks share the rows.
        ops: what works row by row.
        misses: takes what might have gone in front of a gathering, and why it did not.
    """

    def __init__(self, graph: fx.Graph, group: Group, ops: RowOps, misses: Misses) -> None:
        self._graph = graph
        self._group = group
        self._ops = ops
        self._misses = misses
        self._parts: dict[fx.Node, fx.Node] = {}
        self._whole: dict[fx.Node, Any] = {}
        self._sources: dict[fx.Node, fx.Node] = {}
        self._argument: Any = group.name

    def apply(self, taken: Sequence[Reduction]) -> None:
        """Take all-reduces apart.

        Args:
            taken: those whose sum is read by calls alone that work row by row.
        """
        calls = self._shared(taken)
        shared = {call.node for call in calls}
        self._argument = taken[0].start.args[2]
        for reduction in taken:
            self._scatter(reduction)
        for call in calls:
            self._share(call)
        for whole in (*(reduction.end for reduction in taken), *self._whole):
            self._sweep(whole)
        for result in self._whole:
            self._gather(result, shared)
        for reduction in taken:
            self._remove(reduction)

    def _shared(self, taken: Sequence[Reduction]) -> list[RowCall]:
        """Return the calls that run on a part of the rows, in the graph's order: those behind a sum, and what follows.

        Behind an operation on each element, such as the addition of a residual, everything follows that can. Behind an
        op one follows if nobody else reads all rows of what it is given and its own results are smaller, since then
        less is gathered.
        """
        found: dict[fx.Node, RowCall] = {}
        for reduction in taken:
            found.update(self._calls(reduction.end))
        for node in self._graph.nodes:
            if node in found:
                for result in found[node].results:
                    follow = self._behind if found[node].plain else self._followers
                    found.update({call.node: call for call in follow(result, found)})
        return [found[node] for node in self._graph.nodes if node in found]

    def _calls(self, node: fx.Node) -> dict[fx.Node, RowCall]:
        """Return the calls that read the rows of a tensor and work row by row."""
        found = ((user, self._ops.call(user)) for user in readers(node))
        return {user: call for user, call in found if call is not None and call.reads(node)}

    def _behind(self, result: fx.Node, shared: dict[fx.Node, RowCall]) -> list[RowCall]:
        """Return the calls that read a result of an operation on each element and can run on a part, too."""
        calls = [call for node, call in self._calls(result).items() if node not in shared]
        for call in calls:
            if not call.plain and (reason := obstacle(call)):
                self._misses.add(call.name, call.node, f"it stays behind the gathering: {reason}")
        return [call for call in calls if not obstacle(call) and self._ops.leads_to_op(call)]

    def _followers(self, result: fx.Node, shared: dict[fx.Node, RowCall]) -> list[RowCall]:
        """Return the calls that go in front of the gathering of a result."""
        others = [node for node in readers(result) if node not in shared]
        calls = [call for node, call in self._calls(result).items() if node not in shared]
        smaller = sum(_row_bytes(value_of(node)) for call in calls for node in call.results if node.users)
        if not calls or smaller >= _row_bytes(value_of(result)):
            return []
        whole = [node.name for node in others if node not in {call.node for call in calls}]
        for call in calls:
            reason = f"all rows of {result.name} are read by {', '.join(whole)}, too" if whole else obstacle(call)
            if reason:
                self._misses.add(call.name, call.node, f"it stays behind the gathering: {reason}")
                return []
        return calls

    def _scatter(self, reduction: Reduction) -> None:
        """Put a reduce-scatter beside an all-reduce."""
        c10d, start = functional(), reduction.start
        with self._graph.inserting_before(start):
            args = (as_rows(self._graph, reduction.source), reduction.how, self._group.size, start.args[2])
            scattered = insert(self._graph, c10d.reduce_scatter_tensor.default, args, start)
            waited = insert(self._graph, c10d.wait_tensor.default, (scattered,), start)
        self._parts[reduction.end] = waited
        self._sources[waited] = reduction.source

    def _share(self, call: RowCall) -> None:
        """Give a call this rank's rows, and its results the fake results that follow."""
        node = call.node
        results = call.results
        self._whole.update({result: value_of(result) for result in results})
        parts = [self._part(argument, node) for _, argument in call.activations]
        for (index, _), part in zip(call.activations, parts, strict=True):
            if index < len(node.args):
                node.update_arg(index, part)
            else:
                node.update_kwarg(call.names[index], part)
        for each in (node, *results):
            each.meta["val"] = fake_result(each)
        source = next(self._sources[part] for part in parts if part in self._sources)
        self._parts.update({result: result for result in results})
        self._sources.update(dict.fromkeys(results, source))

    def _part(self, argument: fx.Node, before: fx.Node) -> fx.Node:
        """Return this rank's rows of a tensor; of one that every rank has whole they are cut out where it lies."""
        import torch

        base = base_of(argument)
        if base in self._parts:
            return self._parts[base]
        aten = torch.ops.aten
        with self._graph.inserting_before(before):
            shape = [self._group.size, -1, size_of(self._graph, argument, -1, before)]
            parts = insert(self._graph, aten.view.default, (argument, shape), before)
            return insert(self._graph, aten.select.int, (parts, 0, self._group.rank), before)

    def _gather(self, result: fx.Node, shared: Collection[fx.Node]) -> None:
        """Put all rows of a result behind it, for those who read more than this rank's."""
        import torch

        users = [user for user in result.users if user not in shared]
        if not users:
            return
        c10d, aten, whole = functional(), torch.ops.aten, self._whole[result]
        # Not every backend sends 8-bit floats, and all send bytes.
        raw = whole.dtype in _bytes_like()
        with self._graph.inserting_before(result.next):
            sent = insert(self._graph, aten.view.dtype, (result, torch.uint8), result) if raw else result
            args = (sent, self._group.size, self._argument)
            node = insert(self._graph, c10d.all_gather_into_tensor.default, args, result)
            # Behind a guard torch does not see that all parts together are as many rows as there were.
            flat = insert(self._graph, c10d.wait_tensor.default, (node,), result, _flat(whole, sent))
            if raw:
                flat = insert(self._graph, aten.view.dtype, (flat, whole.dtype), result, _flat(whole, result))
            shown = [user for user in users if is_row_view(user) and value_of(user).dim() == FLAT]
            wanted = whole.dim() != FLAT and len(shown) < len(users)
            shaped = self._shaped(flat, whole, self._sources[result]) if wanted else flat
        for user in users:
            if user in shown:
                user.replace_all_uses_with(flat)
                self._graph.erase_node(user)
            else:
                user.replace_input_with(result, shaped)

    def _shaped(self, flat: fx.Node, whole: Any, source: fx.Node) -> fx.Node:
        """Return gathered rows in the leading sizes that they had; where several are open, they are a source's."""
        import torch

        leading: list[Any] = list(whole.shape[:-1])
        several = open_sizes(leading) > 1
        for place, size in enumerate(leading):
            if isinstance(size, torch.SymInt):
                leading[place] = size_of(self._graph, source, place, flat) if several else -1
        shape = [*leading, size_of(self._graph, flat, -1, flat)]
        return insert(self._graph, torch.ops.aten.view.default, (flat, shape), flat, whole)

    def _remove(self, reduction: Reduction) -> None:
        """Take out an all-reduce whose sum nobody reads any more, and what was only there for it."""
        source = reduction.source
        for node in dict.fromkeys((reduction.end, reduction.wait, reduction.start)):
            self._graph.erase_node(node)
        while is_row_view(source) and not source.users:
            shown = source.all_input_nodes[0]
            self._graph.erase_node(source)
            source = shown

    def _sweep(self, node: fx.Node) -> None:
        """Take out what shows a tensor in other leading sizes and is not read any more."""
        for user in [user for user in node.users if is_row_view(user)]:
            self._sweep(user)
            if not user.users:
                self._graph.erase_node(user)


def _flat(whole: Any, like: fx.Node) -> Any:
    """Return the fake result of all rows as [rows, elements]."""
    value = value_of(like)
    with torch_version.fake_mode_of(value) or contextlib.nullcontext():
        return value.new_empty((math.prod(whole.shape[:-1]), whole.shape[-1]))


def _bytes_like() -> frozenset[object]:
    """Return the dtypes that are sent as bytes."""
    import torch

    names = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    return frozenset(getattr(torch, name) for name in names)


def _row_bytes(value: Any) -> int:
    """Return the bytes of one row; a size that is open counts as when the graph was traced."""
    return (torch_sizes.hint_of(value.shape[-1]) or 0) * int(value.element_size())
