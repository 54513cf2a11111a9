"""Fake results for what passes insert: the op's fake is run where an author left it out, and on what reads it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import value_of
from vllm_ir.compile.tracing import describe

if TYPE_CHECKING:
    from torch import fx

KEY = "val"
"""Where a functional graph has a node's fake result."""


def fill(graph: fx.Graph) -> int:
    """Give every node of a functional graph a fake result, and return how many had none or another one.

    What reads a new node gets a new result where its own is of another kind now, and so on down the graph.

    Args:
        graph: in which all but inserted nodes have a fake result.

    Raises:
        Exception: whatever an inserted operation raises on fake tensors, such as for arguments that do not fit.
    """
    fresh: set[fx.Node] = set()
    if all(KEY in node.meta for node in graph.nodes if node.op not in ("output", "placeholder", "get_attr")):
        return 0
    mode = next((m for node in graph.nodes if (m := _mode(node)) is not None), None)
    for node in graph.nodes:
        if node.op == "output":
            continue
        missing = KEY not in node.meta
        if not missing and fresh.isdisjoint(node.all_input_nodes):
            continue
        if node.op == "get_attr":
            node.meta[KEY] = _constant(graph, node, mode)
        elif node.op == "call_function":
            value = _run(node, mode)
            if not missing and describe(value) == describe(value_of(node)):
                continue
            node.meta[KEY] = value
        else:
            continue
        fresh.add(node)
    return len(fresh)


def _mode(node: fx.Node) -> Any:
    """Return the mode that made a node's fake result, or None."""
    value = value_of(node)
    return torch_version.fake_mode_of(value[0] if isinstance(value, (tuple, list)) and value else value)


def _run(node: fx.Node, mode: Any) -> Any:
    """Return the result of a node on fake tensors."""
    import torch

    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
    with mode or contextlib.nullcontext(), torch.no_grad():
        return target(*args, **kwargs)


def _constant(graph: fx.Graph, node: fx.Node, mode: Any) -> Any:
    """Return the fake of a tensor that belongs to the graph's module."""
    value: Any = graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    import torch

    return mode.from_tensor(value) if mode is not None and isinstance(value, torch.Tensor) else value
