"""Which nodes of a graph share memory, who owns it, and whether it is still used.

Decided from the schemas of ops and from the storages of their fake results together: passes that replace a copy by its
source leave the storages of views behind as they were, and an op's schema alone does not know what a chain of them
ends on. Where neither can tell, memory counts as shared.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import storages, tensors_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import fx

Root = tuple[object, int]
"""One piece of memory: the node that brought it, and which of its results."""


class Aliases:
    """The memory of one graph, kept up to date while calls in it are replaced.

    Who reads memory, and when, is asked of the graph itself, which knows it at any time; only what lies in which memory
    is kept here.

    Args:
        graph: with fake results in each node's metadata.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._roots: dict[fx.Node, frozenset[Root]] = {}
        self._heirs: dict[Root, frozenset[Root]] = {}
        self._members: dict[Root, list[fx.Node]] = {}
        self._inputs: set[Root] = set()
        self._given: dict[int, Root] = {}
        for node in graph.nodes:
            self._find(node)

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
        """Tell whether the memory of a node's result is read, written or returned after a place in the graph."""
        return any(
            user.op == "output" or place < user
            for root in self.roots(node)
            for member in self._members[root]
            for user in member.users
        )

    def take(self, node: fx.Node) -> None:
        """Let the graph own the memory of a node's result: the caller donated it, and another value is in it now."""
        self._inputs -= self.roots(node)

    def replace(self, added: Iterable[fx.Node], results: Sequence[tuple[fx.Node, fx.Node]]) -> None:
        """Take in that nodes were added, and that others hold now what some held before.

        Args:
            added: what was put in, in order.
            results: each node that is about to go, and the node that its users will read instead.
        """
        for new in added:
            self._find(new)
        for old, new in results:
            now = self.roots(new)
            for root in self._roots.get(old, frozenset()):
                if root in now:
                    continue
                # What looked like views of the old result are views of the new one, or of one of several where those
                # could not be told apart.
                self._heirs[root] = self._heirs.get(root, frozenset()) | now
                for kept in now:
                    self._members[kept] += self._members[root]

    def _resolve(self, root: Root) -> frozenset[Root]:
        """Return the memory that a result lies in, followed through what replaced it."""
        heirs = self._heirs.get(root)
        if heirs is None:
            return frozenset((root,))
        found: set[Root] = set()
        for heir in heirs:
            found |= self._resolve(heir)
        return frozenset(found)

    def _find(self, node: fx.Node) -> None:
        """Record the memory of a node's result."""
        roots = self._roots_of(node)
        self._roots[node] = roots
        for root in roots:
            for now in self._resolve(root):
                self._members.setdefault(now, []).append(node)

    def _roots_of(self, node: fx.Node) -> frozenset[Root]:
        """Return the memory of a new node's result."""
        if node.op == "output":
            return frozenset()
        tensors = tensors_of(value_of(node))
        if node.op in ("placeholder", "get_attr"):
            # Two inputs may be views of one tensor.
            roots = {self._given.setdefault(s, (node, 0)) for tensor in tensors for s in storages(tensor)}
            self._inputs |= roots or {(node, 0)}
            return frozenset(roots or {(node, 0)})
        parent = node.args[0] if node.args else None
        if node.target is operator.getitem and _is_node(parent):
            return self._item(node, parent)
        found: set[Root] = set()
        for source in _shared(node):
            found |= self.roots(source)
        if not found and tensors:
            found.add((node, 0))
        return frozenset(found)

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
    if target in _unmarked_views():
        return sources
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


@functools.cache
def _unmarked_views() -> frozenset[object]:
    """Return the ops whose schema hides that their result is their argument's memory."""
    import torch

    return frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten.lift.default})  # noqa: SLF001


def _aliased(node: fx.Node, target: Any) -> list[fx.Node]:
    """Return the arguments that an op's schema says a result is a view of, or is."""
    import torch

    schema = torch_version.schema_of(target)
    marked = [result.alias_info.before_set for result in schema.returns if result.alias_info]
    found: list[fx.Node] = []
    for index, argument in enumerate(schema.arguments):
        # What is a list of tensors is marked without a name.
        own = argument.alias_info.before_set if argument.alias_info else None
        if own is None or not any(not own or not names or own & names or "*" in own | names for names in marked):
            continue
        value = node.kwargs.get(argument.name, node.args[index] if index < len(node.args) else None)
        torch.fx.map_arg(value, found.append)
    return found
