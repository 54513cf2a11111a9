"""A node of a graph as a pattern sees it: what it calls, and each argument by name, however the call was written.

Defaults are filled in. What compilers write in several ways is read in one: a cast and a view are told by their result.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import arguments_of, calls_of, tensors_of, value_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from vllm_ir.op import IrOp

CAST: Final = "cast"
VIEW: Final = "view"

_CASTS: Final = ("prims.convert_element_type.default", "aten._to_copy.default")
_VIEWS: Final = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
_COMMUTING: Final = ("aten.add.Tensor", "aten.mul.Tensor")
"""With two operands and nothing else: `alpha` multiplies the second."""


class Port(NamedTuple):
    """One result of a call.

    Attributes:
        node: the call.
        which: its place among several results; None for the only one.
    """

    node: fx.Node
    which: int | None


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number that a graph leaves open, by torch's name for it.

    Attributes:
        name: what torch calls it; equal for what is equal whatever it turns out to be.
        node: what it is in the graph; None where no node holds it.
    """

    name: str
    node: fx.Node | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Return the name."""
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """What a node calls.

    Attributes:
        kind: an operation, "cast" or "view"; equal for calls that a pattern may take for each other.
        label: in a word, for sentences.
        arguments: by name: the node of a tensor, or a plain value.
        commutes: whether the first two arguments may be exchanged.
        typed: whether 1 is not 1.0 among its arguments: beside tensors of whole numbers torch computes otherwise.
    """

    kind: object
    label: str
    arguments: Mapping[str, Any]
    commutes: bool = False
    typed: bool = False


class Reader:
    """Reads nodes.

    Args:
        ops: by name.
    """

    def __init__(self, ops: Mapping[str, IrOp]) -> None:
        self._calls = calls_of(ops)
        self._read: dict[fx.Node, Call | None] = {}

    def op(self, node: fx.Node) -> IrOp | None:
        """Return the op that a node calls, or None."""
        found = self._calls.get(node.target) if node.op == "call_function" else None
        return None if found is None else found[0]

    def read(self, node: fx.Node) -> Call | None:
        """Return what a node calls; None for what is no call of an operation on tensors."""
        if node not in self._read:
            self._read[node] = self._find(node)
        return self._read[node]

    def forget(self) -> None:
        """Forget what was read, since nodes read other nodes now."""
        self._read.clear()

    def label(self, node: fx.Node) -> str:
        """Return what makes a node's result, in words."""
        if node.op == "output":
            return "the graph's output"
        if node.op in ("placeholder", "get_attr"):
            return "an input of the graph"
        call = self.read(node)
        return str(getattr(node.target, "__name__", node.target)).partition(".")[0] if call is None else call.label

    def _find(self, node: fx.Node) -> Call | None:
        """Read a node."""
        op = self.op(node)
        if op is not None:
            values = [*arguments_of(node, op)]
            names = op.declaration.signature.names
            return Call(op.torch_op, op.name, _named(dict(zip(names, values, strict=True))))
        if node.op != "call_function" or not isinstance(node.target, torch_version.op_overload()):
            return None
        if not tensors_of(value_of(node)):
            return None  # the size of a tensor
        name = str(node.target)
        if name in _CASTS and node.args and set(node.kwargs) <= {"dtype"}:
            return Call(CAST, CAST, {"self": node.args[0]})
        if name in _VIEWS:
            return Call(VIEW, VIEW, {"self": node.args[0]})
        schema = torch_version.schema_of(node.target)
        found: dict[str, Any] = {}
        for place, argument in enumerate(schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            found[argument.name] = (
                node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, default)
            )
        label = name.split(".")[-2] if "." in name else name
        arguments = _named(found)
        commutes = name in _COMMUTING and arguments.get("alpha", 1) == 1
        typed = any(map(_is_whole, arguments.values()))
        return Call(node.target, label, arguments, commutes=commutes, typed=typed)


def port_of(node: fx.Node) -> Port:
    """Return the call, and which of its results, that a node holds."""
    parent: Any = node.args[0] if node.args else None
    if node.target is operator.getitem and node.op == "call_function" and hasattr(parent, "meta"):
        index: Any = node.args[1]
        return Port(parent, index)
    return Port(node, None)


def ports_of(node: fx.Node) -> dict[int | None, list[fx.Node]]:
    """Return the nodes that hold each result of a call: itself, or what takes one of several out."""
    if not isinstance(value_of(node), (tuple, list)):
        return {None: [node]}
    found: dict[int | None, list[fx.Node]] = {}
    for user in node.users:
        if user.target is operator.getitem:
            index: Any = user.args[1]
            found.setdefault(index, []).append(user)
    return found


def is_tensor(value: Any) -> bool:
    """Tell whether an argument is the node of a tensor."""
    import torch

    return isinstance(value, torch.fx.Node) and bool(tensors_of(value_of(value)))


def _is_whole(value: Any) -> bool:
    """Tell whether an argument is the node of a tensor of whole numbers."""
    return is_tensor(value) and not any(t.is_floating_point() or t.is_complex() for t in tensors_of(value_of(value)))


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with lists of tensors one by one, and open numbers by their name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)) and any(is_tensor(item) for item in value):
            found.update({f"{name}[{place}]": _plain(item) for place, item in enumerate(value)})
        else:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Return an argument as it can be compared."""
    import torch

    if isinstance(value, torch.fx.Node):
        if is_tensor(value):
            return value
        held = value_of(value)
        # What was open when the program was traced, and is not any longer.
        return held if isinstance(held, (int, float)) else Symbol(str(held), value)
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return Symbol(str(value)) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
