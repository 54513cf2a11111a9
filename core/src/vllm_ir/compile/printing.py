"""A graph as text for people: one line a node, ops by their short names, what a result is and how often it is read."""

from __future__ import annotations

import operator
import textwrap
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile.graph import value_of
from vllm_ir.errors import NothingToPrint

if TYPE_CHECKING:
    import torch
    from torch import fx

_SHORT: Final = {
    "float32": "f32",
    "float64": "f64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3fn",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2": "e5m2",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}
"""Dtypes as they are written in graphs."""

_LINE: Final = 100
"""How long a line may be."""

_NAME: Final = 24
"""How far names are filled up at most; one longer than that would move all others."""

_FAR: Final = 2**63 - 1
"""How graphs write the end of a slice that goes to the end."""


def print_graph(graph: fx.Graph | fx.GraphModule) -> str:
    """Return a graph as text: a line for each node with its result, its call and how often the result is read.

    Args:
        graph: a graph or a graph module, as passes and `lower_to` functions are given one.

    Raises:
        NothingToPrint: it is neither.
    """
    import torch

    given: object = graph
    inner: object = getattr(graph, "graph", graph)
    if not isinstance(inner, torch.fx.Graph):
        kind = type(given).__name__
        raise NothingToPrint(got="None" if given is None else f"{getattr(given, '__name__', 'an object')} ({kind})")
    nodes = list(inner.nodes)
    width = min(max((len(node.name) for node in nodes if node.op != "output"), default=0), _NAME)
    return "\n".join(line for node in nodes for line in _lines(node, width))


def _lines(node: fx.Node, width: int) -> list[str]:
    """Return the lines of a node: one, where that is not too long.

    Args:
        node: the node.
        width: to which names are filled up.
    """
    if node.op == "output":
        text = f"return {_value(node.args[0])}"
    else:
        text = f"{node.name:<{width}} : {_kind(value_of(node))} = {_call(node)}"
        single = not isinstance(value_of(node), (tuple, list))
        read = len(node.users)
        if not read or (single and read > 1):
            text += f"  # read {read}x" if read else "  # unused"
    return textwrap.wrap(
        text, _LINE, subsequent_indent=" " * (width + 3), break_long_words=False, break_on_hyphens=False
    )


def _call(node: fx.Node) -> str:
    """Return what a node calls, as it would be written."""
    if node.op in ("placeholder", "get_attr"):
        return "input" if node.op == "placeholder" else f"self.{node.target}"
    if node.target is operator.getitem:
        return f"{_value(node.args[0])}[{_value(node.args[1])}]"
    name = str(getattr(node.target, "__name__", node.target)).removesuffix(".default")
    arguments = [_value(each) for each in node.args]
    arguments += [f"{key}={_value(each)}" for key, each in node.kwargs.items() if each is not None]
    return f"{name}({', '.join(arguments)})"


def _value(value: Any) -> str:
    """Return an argument as text."""
    import torch

    if isinstance(value, torch.fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, torch.dtype):
        return _dtype(value)
    return "end" if value == _FAR and not isinstance(value, bool) else str(value)


def _kind(value: Any) -> str:
    """Return a result's dtype and sizes."""
    import torch

    if isinstance(value, torch.Tensor):
        return f"{_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_kind, value))})"
    return "?" if value is None else str(value) if isinstance(value, torch.SymInt) else type(value).__name__


def _dtype(dtype: torch.dtype) -> str:
    """Return a dtype's short name."""
    name = str(dtype).removeprefix("torch.")
    return _SHORT.get(name, name)
