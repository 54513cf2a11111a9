"""The pass `noop_removal`: reshapes, copies and writes that change nothing and would stand between a pattern's parts.

What a graph returns is never touched: whether a result is a view of an input stays what it is in eager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile.graph import contiguous, same, tensors_of, value_of
from vllm_ir.compile.passes.base import GraphPass
from vllm_ir.compile.writes import writes

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import fx

_VIEWS: Final = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
_SHAPES: Final = (*_VIEWS, "aten.expand.default", "aten.permute.default", "aten.slice.Tensor", "aten.alias.default")
_SCATTER: Final = "aten.slice_scatter.default"
_SLICE: Final = "aten.slice.Tensor"
_COPY: Final = "aten.copy.default"


class NoopRemoval(GraphPass):
    """Removes what leaves values and layout as they are.

    Reshapes, expansions, permutations and slices with the shape and strides of what they are given; a reshape of a
    reshape; a functional copy over a tensor of the same kind; a slice written back to where it was read, all of a
    tensor written over, and what is read again that was just written.

    Attributes:
        before: names of passes that it goes before.
        after: names of passes that it goes behind.
    """

    name = "noop_removal"

    def __init__(self) -> None:
        self.before: tuple[str, ...] = ()
        self.after: tuple[str, ...] = ()

    def apply(self, graph: fx.Graph) -> int:
        """Let readers of such a result read what it is made of, and return how many results went or moved up."""
        writers = {writer for writer, _ in writes(graph)}
        if writers:
            # Where memory is written to, one name less for it may be one name too few; what AOTAutograd writes back
            # stands behind everything else, and is no reason.
            last = next((n for n in reversed(graph.nodes) if n.op == "call_function" and n not in writers), None)
            if last is not None and any(writer < last for writer in writers):
                return 0
        # One write back may go over what the next one reads, so those keep what they were given, as the output does.
        kept = {*writers, graph.output_node()}
        changes = 0
        for node in list(graph.nodes):
            if node.op != "call_function" or not node.users:
                continue
            changes += _shorten(node)
            source = _unchanged(node)
            if source is not None:
                changes += _pass_by(node, source, kept)
        for node in reversed(list(graph.nodes)):
            if not node.users and _is(node, *_SHAPES, _SCATTER, _COPY):
                graph.erase_node(node)
        return changes


def noop_removal() -> NoopRemoval:
    """Return the pass `noop_removal`."""
    return NoopRemoval()


def _is(node: Any, *names: str) -> bool:
    """Tell whether a node calls one of some operations."""
    return getattr(node, "op", "") == "call_function" and str(node.target) in names


def _pass_by(node: fx.Node, source: fx.Node, kept: Collection[fx.Node]) -> int:
    """Let all but those that keep what they read take a source for a node; return 1 if that changed anything."""
    readers = [user for user in node.users if user not in kept]
    for user in readers:
        user.replace_input_with(node, source)
    return int(bool(readers))


def _unchanged(node: fx.Node) -> fx.Node | None:
    """Return the node whose value and layout another one has, or None."""
    source: Any = node.args[0] if node.args else None
    if _is(node, *_SHAPES):
        return source if _alike(node, source) and not _reorders(node) else _read_again(node)
    if _is(node, _COPY) and len(node.args) > 1:
        over: fx.Node = node.args[1]  # type: ignore[assignment]
        return over if _alike(node, over) else None
    if _is(node, _SCATTER):
        return _written_back(node)
    return None


def _written_back(node: fx.Node) -> fx.Node | None:
    """Return its base, where a slice-scatter writes what it read there, or what covers all of it; else None."""
    base: Any = node.args[0]
    written: Any = node.args[1]
    if _is(written, _SLICE) and written.args[0] is base and _range(written, 1) == _range(node, 2):
        return base if _alike(node, base) else None
    return written if _alike(node, written) else None


def _read_again(node: fx.Node) -> fx.Node | None:
    """Return what was written where a slice reads, or None."""
    source: Any = node.args[0]
    if not _is(node, _SLICE) or not _is(source, _SCATTER) or _range(node, 1) != _range(source, 2):
        return None
    written: fx.Node = source.args[1]
    if _alike(node, written):
        return written
    value, other = value_of(node), value_of(written)
    fits = value.dtype == other.dtype and len(value.shape) == len(other.shape)
    # A reshape behind it takes rows without gaps, whatever it took before.
    return written if fits and all(map(same, value.shape, other.shape)) and contiguous(other) else None


def _shorten(node: fx.Node) -> int:
    """Let a reshape of a reshape read what that was made of, where that lies row by row; return 1 if it did."""
    parent: Any = node.args[0] if _is(node, *_VIEWS) else None
    base: Any = parent.args[0] if _is(parent, *_VIEWS) else None
    if base is None or not contiguous(value_of(base)) or any(user.op == "output" for user in node.users):
        return 0
    node.replace_input_with(parent, base)
    return 1


def _range(node: fx.Node, place: int) -> tuple[Any, ...]:
    """Return dimension, start, end and step of a slice, whose first is the argument at a place."""
    given = [*node.args[place:], *([None] * 4)][:4]
    keys = ("dim", "start", "end", "step")
    dim, start, end, step = (node.kwargs.get(key, value) for key, value in zip(keys, given, strict=True))
    far = 2**63 - 1
    return dim or 0, start or 0, far if end is None else end, step or 1


def _reorders(node: fx.Node) -> bool:
    """Tell whether a permutation moves a dimension; where two sizes are equal the result may look the same."""
    order: Any = node.args[1] if _is(node, "aten.permute.default") else ()
    return any(dim % max(len(order), 1) != place for place, dim in enumerate(order))


def _alike(node: fx.Node, source: Any) -> bool:
    """Tell whether two results have one dtype, shape and strides, and begin at the same place of their memory."""
    if not tensors_of(getattr(source, "meta", {}).get("val")):
        return False
    one, other = value_of(node), value_of(source)
    if one.dtype != other.dtype or one.device != other.device or len(one.shape) != len(other.shape):
        return False
    layout = (*one.shape, *one.stride()), (*other.shape, *other.stride())
    return all(map(same, *layout))
