"""Before AOTAutograd: calls that donate become functional ones, and what they donate is noted down and checked.

AOTAutograd would wrap a call that may write to its inputs so that nothing sees into it any more. Which arguments lie in
memory that the caller gave is decided here, on the program as it was written: later a copy that the program made may
have been taken for superfluous, and the argument would look like the caller's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm_ir.compile.graph import (
    METADATA,
    arguments_of,
    calls_of,
    source_of,
    storages,
    subgraphs,
    tensors_of,
    value_of,
)
from vllm_ir.compile.overlap import overlapping
from vllm_ir.compile.sources import written_argument
from vllm_ir.errors import UsedAfterDonation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch
    from torch import fx

    from vllm_ir.compile.aliases import Aliases
    from vllm_ir.op import IrOp

NOTE: Final = "vllm_ir"
"""The key of a node's donations in its custom metadata, which AOTAutograd hands on."""

INNER: Final = "vllm_ir_inner"
"""The key that marks what is given to a graph inside of another."""


class _Read(NamedTuple):
    """One node that reads a tensor."""

    place: int
    node: fx.Node
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class Donation:
    """What one call donates.

    Attributes:
        op: the op's name.
        inputs: positions of the donated activations that lie in memory which the caller of the graph gave.
        donated: positions of all donated activations.
    """

    op: str
    inputs: tuple[int, ...]
    donated: tuple[int, ...]


def mark_subgraphs(module: fx.GraphModule) -> None:
    """Note down which graphs are parts of others: what those are given belongs to the graph around them.

    Passes see one graph at a time and could not tell.
    """
    for _, inner in subgraphs(module):
        for node in inner.graph.nodes:
            if node.op == "placeholder":
                node.meta[INNER] = True


def functionalize(graph: fx.Graph, ops: Mapping[str, IrOp]) -> list[Donation | None]:
    """Let every donating call be a functional one, and return what each call of an op donates, in the graph's order.

    Args:
        graph: as Dynamo made it.
        ops: by name.

    Raises:
        UsedAfterDonation: a donated tensor is read after the call, itself or through a view.
    """
    calls = calls_of(ops)
    found: list[Donation | None] = []
    given: frozenset[int] = frozenset()
    reads: dict[int, list[_Read]] = {}
    for place, node in enumerate(graph.nodes):
        if node.op != "call_function" or node.target not in calls:
            continue
        op, donates = calls[node.target]
        if not donates:
            found.append(None)
            continue
        if not reads:
            given, reads = _given(graph), _reads(graph)
        donation = _donation(node, op, given)
        _check(node, place, op, reads)
        node.target = op.torch_op
        # A copy of the dictionary: AOTAutograd and Dynamo share it between nodes.
        node.meta["custom"] = {**(node.meta.get("custom") or {}), NOTE: (op.name, donation.inputs)}
        found.append(donation)
    return found


def donated_inputs(node: fx.Node, op: IrOp) -> tuple[int, ...]:
    """Return the positions of the activations of a call that the caller of the graph donated, itself or as a view."""
    note = (node.meta.get("custom") or {}).get(NOTE)
    # Metadata spreads to what AOTAutograd makes of a node, so the op is part of the note.
    return tuple(note[1]) if note is not None and note[0] == op.name else ()


def hand_on(nodes: Iterable[fx.Node], ops: Mapping[str, IrOp], donated: Iterable[fx.Node], aliases: Aliases) -> None:
    """Note down that the calls which stand for another donate what that one was given to give away.

    Args:
        nodes: what was put in the place of a call, in order.
        ops: by name.
        donated: arguments of that call that the caller of the graph donated.
        aliases: the memory of the graph.
    """
    calls = calls_of(ops)
    memory = {root for argument in donated for root in aliases.roots(argument)}
    for node in nodes:
        if node.op != "call_function" or node.target not in calls:
            continue
        op, args = calls[node.target][0], arguments_of(node, calls[node.target][0])
        roots = {index: aliases.roots(args[index]) for index in op.activation_indices}
        found = tuple(index for index, mine in roots.items() if mine and mine <= memory)
        if found:
            node.meta["custom"] = {**(node.meta.get("custom") or {}), NOTE: (op.name, found)}


def _given(graph: fx.Graph) -> frozenset[int]:
    """Return the memory that the graph is given and may give away: parameters are never donated."""
    import torch

    memory: set[int] = set()
    kept: set[int] = set()
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr"):
            continue
        for tensor in tensors_of(value_of(node)):
            lasting = node.op == "get_attr" or isinstance(tensor, torch.nn.Parameter) or INNER in node.meta
            (kept if lasting else memory).update(storages(tensor))
    return frozenset(memory - kept)


def _donation(node: fx.Node, op: IrOp, given: frozenset[int]) -> Donation:
    """Return what a call donates."""
    args = arguments_of(node, op)
    donated: list[int] = []
    inputs: list[int] = []
    for index in op.activation_indices:
        memory = _memory(args[index])
        if not memory:
            continue
        donated.append(index)
        if memory <= given:
            inputs.append(index)
    return Donation(op.name, tuple(inputs), tuple(donated))


def _memory(value: Any) -> frozenset[int]:
    """Return the memory of an argument."""
    import torch

    if isinstance(value, torch.fx.Node):
        return frozenset(s for tensor in tensors_of(value_of(value)) for s in storages(tensor))
    return frozenset()


def _reads(graph: fx.Graph) -> dict[int, list[_Read]]:
    """Return who reads each piece of memory, in the graph's order."""
    found: dict[int, list[_Read]] = {}
    for place, node in enumerate(graph.nodes):
        if _asks_for_metadata(node):
            continue
        for source in node.all_input_nodes:
            for tensor in tensors_of(value_of(source)):
                for memory in storages(tensor):
                    found.setdefault(memory, []).append(_Read(place, node, tensor))
    return found


def _asks_for_metadata(node: fx.Node) -> bool:
    """Tell whether a node asks a tensor only for what is still true when other values are in it."""
    if node.op == "call_method":
        return node.target in METADATA
    if node.target is getattr:
        return node.args[1] in METADATA
    return str(node.target).startswith("aten.sym_")


def _check(node: fx.Node, place: int, op: IrOp, reads: Mapping[int, list[_Read]]) -> None:
    """Raise if what a call donates is read behind it."""
    args = arguments_of(node, op)
    for index in op.activation_indices:
        argument = args[index]
        for tensor in tensors_of(value_of(argument)):
            later = (r for memory in storages(tensor) for r in reads[memory] if r.place > place)
            read = next((r for r in later if overlapping(tensor, r.tensor)), None)
            if read is None:
                continue
            raise UsedAfterDonation(
                op=op.name,
                argument=op.declaration.signature.names[index],
                node=argument.name,
                user="the graph's output" if read.node.op == "output" else read.node.name,
                where=source_of(node),
                used=source_of(read.node),
                expression=written_argument(node, argument, index, op.declaration.signature.names[index]),
            )
