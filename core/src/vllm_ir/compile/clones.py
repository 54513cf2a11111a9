"""Where an implementation that writes to its activations needs copies of them, so that nothing else is overwritten.

An activation may be written where nobody reads its memory afterwards and the graph owns that memory: it made it, or the
caller donated it. Everything else gets a copy, and only there: none is put in to be taken out again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import contiguous, tensors_of, value_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch
    from torch import fx

    from vllm_ir.compile.aliases import Aliases


def needing_copies(
    node: fx.Node, args: Sequence[Any], activations: Sequence[int], donated: Collection[int], aliases: Aliases
) -> list[int]:
    """Return the positions of the activations that must not be written where they lie.

    Args:
        node: the op's call.
        args: its arguments by position, nodes among them.
        activations: positions of what the implementation writes.
        donated: positions of what the caller of the graph donated to this call.
        aliases: the memory of the graph.
    """
    return [
        index for index in activations if _is_tensor(args[index]) and not _writable(node, args, index, donated, aliases)
    ]


def copy_argument(graph: fx.Graph, node: fx.Node, argument: fx.Node, value: Any = None) -> fx.Node:
    """Put a contiguous copy of an argument before a call and return it.

    Args:
        graph: that of both.
        node: the call.
        argument: a tensor.
        value: the copy's fake result, if it was made already.

    Contiguous, since an implementation returns what it wrote to, and results are contiguous.
    """
    import torch

    with graph.inserting_before(node):
        copy = graph.call_function(torch.ops.aten.clone.default, (argument,), {"memory_format": _rows()})
    copy.meta["val"] = copy_of(value_of(argument)) if value is None else value
    if "stack_trace" in node.meta:
        copy.meta["stack_trace"] = node.meta["stack_trace"]
    return copy


def copy_of(value: torch.Tensor) -> torch.Tensor:
    """Return what a contiguous copy of a fake tensor is like: in memory of its own, or both would seem to share it."""
    with torch_version.fake_mode_of(value) or contextlib.nullcontext():
        return value.clone(memory_format=_rows())


def _rows() -> torch.memory_format:
    """Return the layout of rows without gaps."""
    import torch

    return torch.contiguous_format


def _is_tensor(value: Any) -> bool:
    """Tell whether an argument is a tensor in the graph."""
    import torch

    return isinstance(value, torch.fx.Node) and bool(tensors_of(value_of(value)))


def _writable(node: fx.Node, args: Sequence[Any], index: int, donated: Collection[int], aliases: Aliases) -> bool:
    """Tell whether an activation may be written where it lies."""
    argument = args[index]
    memory = aliases.roots(argument)
    if not memory or aliases.used_after(argument, node):
        return False
    if aliases.owned_by_caller(argument) and index not in donated:
        return False
    # What it writes to, it returns, and results are contiguous.
    if not all(map(contiguous, tensors_of(value_of(argument)))):
        return False
    others = [value for place, value in enumerate(args) if place != index]
    return not any(memory & aliases.roots(other) for other in _nodes(others))


def _nodes(values: Sequence[Any]) -> list[fx.Node]:
    """Return the nodes among arguments, also in lists."""
    import torch

    found: list[fx.Node] = []
    for value in values:
        if isinstance(value, torch.fx.Node):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(_nodes(value))
    return found
