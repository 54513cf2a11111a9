"""What an implementation writes to, as its trace shows: it may change nothing but what it said it would."""

from __future__ import annotations

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
    writers = [(node, value) for node in graph.nodes for value in _written(node)]
    if not writers:
        return frozenset()
    aliases = Aliases(graph)
    memory = {root for _, value in writers for root in aliases.roots(value)}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return frozenset(place for place, node in enumerate(inputs) if memory & aliases.roots(node))


def _written(node: fx.Node) -> list[fx.Node]:
    """Return the arguments that an operation writes to, by its schema."""
    import torch

    if node.op != "call_function" or not isinstance(node.target, torch_version.op_overload()):
        return []
    found: list[Any] = []
    for place, argument in enumerate(torch_version.schema_of(node.target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.kwargs.get(argument.name, node.args[place] if place < len(node.args) else None)
            torch.fx.map_arg(value, found.append)
    return found
