"""Collectives beside products in a graph: how they are found, and how they become one operation."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vllm_ir.compile.graph import value_of
from vllm_ir.compile.passes.collectives import functional, insert, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx


@dataclass(frozen=True, slots=True)
class Scattered:
    """A product whose rows are added up and scattered.

    Attributes:
        operation: what it becomes.
        product: of two matrices.
        start: the reduce-scatter.
        wait: the call that waits for it.
    """

    operation: ClassVar[str] = "fused_matmul_reduce_scatter"
    product: fx.Node
    start: fx.Node
    wait: fx.Node

    def apply(self, graph: fx.Graph) -> None:
        """Make one operation of it."""
        _, how, _, group = self.start.args
        args = (*self.product.args, how, 0, name_of(group))
        with graph.inserting_before(self.start):
            fused = insert(graph, _symmetric(self.operation), args, self.product, value_of(self.wait))
        self.wait.replace_all_uses_with(fused)
        for node in (self.wait, self.start, self.product):
            graph.erase_node(node)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows that are gathered, and the products of them.

    Attributes:
        operation: what it becomes.
        start: the all-gather.
        wait: the call that waits for it.
        products: of the gathered rows, each with a matrix that does not depend on them, in the graph's order.
    """

    operation: ClassVar[str] = "fused_all_gather_matmul"
    start: fx.Node
    wait: fx.Node
    products: tuple[fx.Node, ...]

    def apply(self, graph: fx.Graph) -> None:
        """Make one operation of it, which also returns the gathered rows where somebody else reads them."""
        part, _, group = self.start.args
        first = self.products[0]
        matrices = [product.args[1] for product in self.products]
        # A product further down may have its matrix transposed just before it.
        for node in sorted(_needed(matrices)):
            if first < node:
                first.prepend(node)
        keep = len(self.wait.users) > len(self.products)
        rows = value_of(self.wait) if keep else None
        results = [value_of(product) for product in self.products]
        with graph.inserting_before(first):
            args = (part, matrices, 0, name_of(group))
            target = _symmetric(self.operation)
            fused = insert(graph, target, args, self.start, (rows, results), return_A=keep)
            if keep:
                whole = insert(graph, operator.getitem, (fused, 0), self.start)
            several = insert(graph, operator.getitem, (fused, 1), self.start)
            for index, product in enumerate(self.products):
                product.replace_all_uses_with(insert(graph, operator.getitem, (several, index), product))
        for product in self.products:
            graph.erase_node(product)
        if keep:
            self.wait.replace_all_uses_with(whole)
        graph.erase_node(self.wait)
        graph.erase_node(self.start)


def scattered(start: fx.Node) -> Scattered | str | None:
    """Return a reduce-scatter with its product, why that does not fit, or None where it is beside no product.

    Args:
        start: the reduce-scatter.
    """
    product, how = start.all_input_nodes[0], start.args[1]
    wait = _wait(start)
    if wait is None or product.target not in _products():
        return None
    if product.target is not _products()[0]:
        return _no_plain(product)
    if how not in ("sum", "avg"):
        return f"it reduces by {how!r}, and PyTorch has this for 'sum' and 'avg'"
    if len(product.users) > 1:
        others = [user.name if user.op != "output" else "the graph's result" for user in product.users]
        return f"its product is read by {', '.join(name for name in others if name != start.name)}, too"
    return Scattered(product, start, wait)


def gathered(start: fx.Node) -> Gathered | str | None:
    """Return an all-gather with the products of it, why they do not fit, or None where it is beside no product.

    Args:
        start: the all-gather.
    """
    wait = _wait(start)
    if wait is None:
        return None
    users = [user for user in _through_bytes(wait) if user.target in _products()]
    if not users:
        return None
    plain = [user for user in users if user.target is _products()[0] and user.args[0] is wait]
    if not plain:
        wrong = next((user for user in users if user.target is not _products()[0]), None)
        return "it is the second matrix of its product" if wrong is None else _no_plain(wrong)
    fitting = [user for user in plain if wait not in _needed([user.args[1]])]
    if not fitting:
        return "the other matrix of its product depends on it"
    return Gathered(start, wait, tuple(sorted(fitting)))


def _wait(start: fx.Node) -> fx.Node | None:
    """Return the one call that waits for a collective, or None."""
    users = list(start.users)
    return users[0] if len(users) == 1 and users[0].target is functional().wait_tensor.default else None


def _through_bytes(node: fx.Node) -> Iterable[fx.Node]:
    """Give who reads gathered rows, through what makes another dtype of the bytes that were sent."""
    import torch

    for user in node.users:
        yield from user.users if user.target is torch.ops.aten.view.dtype else (user,)


def _needed(nodes: Iterable[Any]) -> set[fx.Node]:
    """Return nodes and all that they are made from."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _products() -> tuple[object, ...]:
    """Return what multiplies matrices, the plain product of two first."""
    import torch

    aten = torch.ops.aten
    return (
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten._scaled_mm.default,  # noqa: SLF001 - that is its name
    )


def _no_plain(product: fx.Node) -> str:
    """Return that a product is none of two matrices alone."""
    return f"{product.name} is {product.target}, and wanted is the plain product of two matrices, aten.mm"


def _symmetric(operation: str) -> Any:
    """Return an operation on symmetric memory."""
    import torch

    return getattr(torch.ops.symm_mem, operation).default
