"""Which nodes of a graph share memory, who owns it, and when it is last used.

Decided from the schemas of ops and from the storages of their fake results together: passes that replace a copy by its
source leave the storages of views behind as they were, and an op's schema alone does not know what a chain of them
ends on. Where neither can tell, memory counts as shared.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import storages, tensors_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

ALWAYS: Final = 1 << 60
"""The place of the last use of memory that the graph returns."""

Root = tuple[object, int]
"""One piece of memory: the node that brought it, and which of its results."""


class Aliases:
    """The memory of one graph, kept up to date while ops in it are replaced.

    Args:
        graph: with fake results in each node's metadata.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._roots: dict[fx.Node, frozenset[Root]] = {}
        self._heirs: dict[Root, frozenset[Root]] = {}
        self._last: dict[Root, int] = {}
        self._inputs: set[Root] = set()
        self._places: dict[fx.Node, int] = {}
        for place, node in enumerate(graph.nodes):
            self._places[node] = place
            self._find(node)
        for node in graph.nodes:
            self._use(node)

    def roots(self, node: fx.Node) -> frozenset[Root]:
        """Return the memory that a node's result may lie in; empty for what is no tensor."""
        found: set[Root] = set()
        for root in self._roots.get(node, ()):
            found |= self._resolve(root)
        return frozenset(found)

    def owned_by_caller(self, node: fx.Node) -> bool:
        """Tell whether a node's result may lie in memory that the graph was given."""
        return any(root in self._inputs for root in self.roots(node))

    def used_after(self, node: fx.Node, place: fx.Node) -> bool:
        """Tell whether the memory of a node's result is read or returned after a place in the graph."""
        last = max((self._last.get(root, -1) for root in self.roots(node)), default=-1)
        return last > self._places[place]

    def take(self, node: fx.Node) -> None:
        """Let the graph own the memory of a node's result: the caller donated it, and another value is in it now."""
        self._inputs -= self.roots(node)

    def replace(self, node: fx.Node, added: Iterable[fx.Node], results: list[tuple[fx.Node, fx.Node]]) -> None:
        """Take in that nodes stand in place of one.

        Args:
            node: what was replaced; its users are still its own.
            added: what computes its results now, in order.
            results: each node that read a result of it, or it itself, and the node that holds this result now.
        """
        place = self._places[node]
        for new in added:
            self._places[new] = place
            self._find(new)
            for root in self.roots(new):
                self._last[root] = max(self._last.get(root, -1), self._last_use(new))
        for old, new in results:
            now = self.roots(new)
            last = max((self._last.get(root, -1) for root in self.roots(old)), default=-1)
            for root in now:
                self._last[root] = max(self._last.get(root, -1), last)
            for root in self._roots.get(old, frozenset()) - now:
                if root not in now:
                    self._heirs[root] = now

    def _resolve(self, root: Root) -> frozenset[Root]:
        """Return the memory that a result lies in, followed through what replaced it."""
        heirs = self._heirs.get(root)
        if heirs is None:
            return frozenset((root,))
        found: set[Root] = set()
        for heir in heirs:
            found |= self._resolve(heir)
        return frozenset(found)

    def _use(self, node: fx.Node) -> None:
        """Record where a node's memory is last used."""
        last = self._last_use(node)
        for root in self.roots(node):
            self._last[root] = max(self._last.get(root, -1), last)

    def _last_use(self, node: fx.Node) -> int:
        """Return the place of the last user of a node."""
        return max((ALWAYS if u.op == "output" else self._places.get(u, -1) for u in node.users), default=-1)

    def _find(self, node: fx.Node) -> None:
        """Record the memory of a new node's result."""
        if node.op in ("placeholder", "get_attr"):
            roots = frozenset({(node, 0)})
            self._roots[node] = roots
            self._inputs |= roots
            return
        if node.op == "output":
            return
        parent = node.args[0] if node.args else None
        if node.target is operator.getitem and _is_node(parent):
            self._roots[node] = self._item(node, parent)
            return
        found: set[Root] = set()
        for source in _shared(node):
            found |= self.roots(source)
        if not found and tensors_of(value_of(node)):
            found.add((node, 0))
        self._roots[node] = frozenset(found)

    def _item(self, node: fx.Node, parent: Any) -> frozenset[Root]:
        """Return the memory of one of several results: memory of its own, unless the op returns views."""
        index = node.args[1]
        whole = self.roots(parent)
        if whole == {(parent, 0)} and isinstance(index, int) and _distinct(parent):
            return frozenset({(parent, index)})
        return whole


def _is_node(value: object) -> bool:
    """Tell whether a value is a node of a graph."""
    import torch

    return isinstance(value, torch.fx.Node)


def _distinct(node: fx.Node) -> bool:
    """Tell whether all results of a node lie in memory of their own."""
    found = [storage for tensor in tensors_of(value_of(node)) for storage in storages(tensor)]
    return len(found) == len(set(found))


def _shared(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that a result of a node may share memory with."""
    target = node.target
    sources = [source for source in node.all_input_nodes if tensors_of(value_of(source))]
    if isinstance(target, torch_version.higher_order_op()) or node.op in ("call_module", "call_method"):
        return sources
    mine = {storage for tensor in tensors_of(value_of(node)) for storage in storages(tensor)}
    found = [
        source
        for source in sources
        if mine & {storage for tensor in tensors_of(value_of(source)) for storage in storages(tensor)}
    ]
    if isinstance(target, torch_version.op_overload()):
        found += _aliased(node, target)
    elif node.op == "call_function" and target is not operator.getitem and not _is_arithmetic(target):
        return sources
    return found


def _is_arithmetic(target: object) -> bool:
    """Tell whether a function is one on plain numbers, as graphs have them for sizes."""
    return getattr(target, "__module__", "") in ("_operator", "math", "torch")


def _aliased(node: fx.Node, target: Any) -> list[fx.Node]:
    """Return the arguments that an op's schema says a result is a view of, or is."""
    import torch

    schema = torch_version.schema_of(target)
    returned = {name for result in schema.returns if result.alias_info for name in result.alias_info.before_set}
    if not returned:
        return []
    found: list[fx.Node] = []
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not (argument.alias_info.before_set & returned or "*" in returned):
            continue
        value = node.kwargs.get(argument.name, node.args[index] if index < len(node.args) else None)
        torch.fx.map_arg(value, found.append)
    return found
