"""Tensors as rows: what shows the same rows in other leading sizes, who reads them, and how they are made flat."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile.graph import contiguous, same, value_of
from vllm_ir.compile.passes.collectives import insert

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import fx

FLAT: Final = 2
"""The dimensions of rows and their elements."""


def size_of(graph: fx.Graph, node: fx.Node, place: int, like: fx.Node) -> int | fx.Node:
    """Return a size of a tensor, as a node where it is open.

    Args:
        graph: inserted into.
        node: the tensor.
        place: of the dimension.
        like: the node whose line of the program it comes from.
    """
    import torch

    size = value_of(node).shape[place]
    if isinstance(size, torch.SymInt):
        return insert(graph, torch.ops.aten.sym_size.int, (node, place), like, size)
    return int(size)


def open_sizes(sizes: Iterable[Any]) -> int:
    """Return how many of some sizes are open."""
    import torch

    return sum(isinstance(size, torch.SymInt) for size in sizes)


def rows(node: fx.Node) -> Any:
    """Return how many rows a tensor has: the product of all sizes but the last."""
    return math.prod(value_of(node).shape[:-1])


def is_row_view(node: fx.Node) -> bool:
    """Tell whether a node shows the rows of its argument in other leading sizes, in the same order."""
    import torch

    aten = torch.ops.aten
    views = {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default}  # noqa: SLF001
    if node.target not in views:
        return False
    before, behind = value_of(node.all_input_nodes[0]), value_of(node)
    if min(before.dim(), behind.dim()) < 1 or not same(before.shape[-1], behind.shape[-1]):
        return False
    return contiguous(before) and contiguous(behind)


def base_of(node: fx.Node) -> fx.Node:
    """Return the tensor whose rows a node shows."""
    while is_row_view(node):
        node = node.all_input_nodes[0]
    return node


def readers(node: fx.Node) -> list[fx.Node]:
    """Return who reads the rows of a tensor, itself or shown in other leading sizes."""
    found: list[fx.Node] = []
    for user in node.users:
        found += readers(user) if is_row_view(user) else [user]
    return list(dict.fromkeys(found))


def as_rows(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """Return a contiguous tensor as [rows, last size]: what it is a view of where that has two dimensions, else a view.

    Args:
        graph: inserted into where the view may stand.
        node: of one dimension at least.
    """
    import torch

    flat = node
    while value_of(flat).dim() != FLAT and is_row_view(flat):
        flat = flat.all_input_nodes[0]
    if value_of(flat).dim() == FLAT:
        return flat
    return insert(graph, torch.ops.aten.view.default, (node, [-1, size_of(graph, node, -1, node)]), node)
