"""What operations in a graph write to, by their schemas.

An implementation may change nothing but what it said it would, and a pass leaves no write that it was not given.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_version
from vllm_ir.compile.aliases import Aliases

if TYPE_CHECKING:
    from torch import fx


def written_inputs(graph: fx.Graph) -> frozenset[int]:
    """Return which inputs of a traced implementation an operation in it writes to, itself or through a view.

    Args:
        graph: the trace; the inputs are its placeholders in their order.
    """
    writers = writes(graph)
    if not writers:
        return frozenset()
    aliases = Aliases(graph)
    memory = {root for _, value in writers for root in aliases.roots(value)}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return frozenset(place for place, node in enumerate(inputs) if memory & aliases.roots(node))


def writes(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """Return each operation in a graph that writes to a tensor, with the node of that tensor."""
    return [(node, value) for node in graph.nodes for value in _written(node)]


def _written(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that an operation writes to, by its schema."""
    import torch

    if node.op != "call_function" or not isinstance(node.target, torch_version.op_overload()):
        return []
    found: list[Any] = []
    for place, name in _written_places(node.target):
        value = node.kwargs.get(name, node.args[place] if place < len(node.args) else None)
        torch.fx.map_arg(value, found.append)
    return found


@functools.lru_cache(maxsize=4096)
def _written_places(target: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of each argument that an operation writes to; asked for every node of every graph."""
    arguments = enumerate(torch_version.schema_of(target).arguments)
    return tuple((place, a.name) for place, a in arguments if a.alias_info is not None and a.alias_info.is_write)
