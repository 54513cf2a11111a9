"""What works row by row, so that each rank can run them on rows of its own, and what keeps one from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import arguments_of, contiguous, results_of, same, tensors_of, value_of
from vllm_ir.compile.passes.sequence_parallel_views import FLAT, base_of, readers
from vllm_ir.errors import UnknownOp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch import fx

    from vllm_ir.op import IrOp

ROW_OPS: Final = (
    "rms_norm",
    "fused_add_rms_norm",
    "static_quant_fp8",
    "dynamic_quant_fp8",
    "dynamic_group_quant_fp8",
    "rms_norm_static_quant_fp8",
    "fused_add_rms_norm_static_quant_fp8",
    "rms_norm_dynamic_quant_fp8",
    "fused_add_rms_norm_dynamic_quant_fp8",
)
"""The ops of the core that make each row of their results from the same row of their activations alone.

Some do so for some arguments only, such as a scale for each row and not for all of them; their results tell which.
"""


@dataclass(frozen=True, slots=True)
class RowCall:
    """A call that works row by row: of an op, or of an operation of torch's on each element.

    Attributes:
        node: the call.
        name: what it calls.
        args: all arguments by position.
        names: of the arguments.
        places: positions of the activations.
        plain: whether it is an operation on each element, which is worth running on a part for what follows alone.
    """

    node: fx.Node
    name: str
    args: tuple[Any, ...]
    names: Sequence[str]
    places: tuple[int, ...]
    plain: bool = False

    @property
    def activations(self) -> tuple[tuple[int, fx.Node], ...]:
        """Positions and nodes of the activations."""
        return tuple((index, self.args[index]) for index in self.places)

    @property
    def results(self) -> list[fx.Node]:
        """The nodes that hold its results, as far as somebody reads them."""
        values = tensors_of(value_of(self.node))
        return [node for node, _ in results_of(self.node, [None] * len(values))]

    def reads(self, node: fx.Node) -> bool:
        """Tell whether the rows of a tensor are an activation of this call, and no other argument."""
        mine = [argument for _, argument in self.activations]
        others = [each for each in self.node.all_input_nodes if each not in mine]
        return any(base_of(each) is node for each in mine) and all(base_of(each) is not node for each in others)


class RowOps:
    """The ops that work row by row, by what graphs call.

    Args:
        known: all ops by name.
        more: names of ops beside those of the core.

    Raises:
        UnknownOp: there is none of a name.
    """

    def __init__(self, known: Mapping[str, IrOp], more: Iterable[str] = ()) -> None:
        names = [name for name in ROW_OPS if name in known]
        for name in more:
            if name not in known:
                raise UnknownOp(op=name, known=sorted(known))
            names.append(name)
        self._ops: dict[object, IrOp] = {known[name].torch_op: known[name] for name in names}

    def call(self, node: fx.Node) -> RowCall | None:
        """Return a node as a call that works row by row, or None."""
        if node.op != "call_function":
            return None
        op = self._ops.get(node.target)
        if op is None:
            return _plain(node)
        names = op.declaration.signature.names
        return RowCall(node, op.name, arguments_of(node, op), names, tuple(op.activation_indices))

    def leads_to_op(self, call: RowCall) -> bool:
        """Tell whether a call is one of an op that can run on a part, or leads to one by others on each element."""
        waiting, seen = [call], {call.node}
        while waiting:
            each = waiting.pop()
            if not each.plain:
                if not obstacle(each):
                    return True
                continue
            for node in (node for result in each.results for node in readers(result) if node not in seen):
                seen.add(node)
                behind = self.call(node)
                waiting += [behind] if behind is not None else []
        return False


def _plain(node: fx.Node) -> RowCall | None:
    """Return a node as a call of an operation on each element, or None.

    What residuals are added and scaled by, and what changes a dtype.
    """
    import torch

    aten = torch.ops.aten
    plain = {aten.add.Tensor, aten.mul.Tensor, torch.ops.prims.convert_element_type.default}
    copies = node.target is aten._to_copy.default and set(node.kwargs) == {"dtype"}  # noqa: SLF001 - that is its name
    if node.target not in plain and not copies:
        return None
    places = tuple(index for index, each in enumerate(node.args) if any(x.dim() >= FLAT for x in _tensors(each)))
    names = [argument.name for argument in torch_version.schema_of(node.target).arguments]
    return RowCall(node, str(node.target), node.args, names, places, plain=True) if places else None


def obstacle(call: RowCall) -> str:
    """Return what keeps a call from being run on some of the rows, in words; empty if nothing does."""
    leading = value_of(call.activations[0][1]).shape[:-1]
    for index, argument in call.activations:
        name, value = call.names[index], value_of(argument)
        if not same_sizes(value.shape[:-1], leading):
            return f"its argument {name!r} has rows of its own"
        if value.dim() > FLAT and not contiguous(value):
            return f"its argument {name!r} has more than two dimensions and is not contiguous"
    for index, argument in enumerate(call.args):
        if index not in call.places and any(each.dim() >= FLAT for each in _tensors(argument)):
            name = call.names[index]
            return f"its argument {name!r} has rows, and only activations are shared out"
    for place, value in enumerate(tensors_of(value_of(call.node))):
        if not same_sizes(value.shape[:-1], leading):
            return f"its result {place} is not made row by row: it has the shape {_shape(value)}"
        if not contiguous(value):
            return f"its result {place} does not lie in memory row by row, and gathered rows do"
    return ""


def _tensors(argument: Any) -> list[torch.Tensor]:
    """Return the fake tensors in an argument."""
    import torch

    found: list[fx.Node] = []
    torch.fx.map_arg(argument, found.append)
    return [tensor for node in found for tensor in tensors_of(value_of(node))]


def same_sizes(one: Any, other: Any) -> bool:
    """Tell whether sizes are the same."""
    return len(one) == len(other) and all(same(size, theirs) for size, theirs in zip(one, other, strict=True))


def _shape(value: Any) -> str:
    """Return a tensor's shape in words."""
    return f"[{', '.join(map(str, value.shape))}]"
