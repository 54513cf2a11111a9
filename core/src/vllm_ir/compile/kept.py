"""Donated inputs that the program still holds behind the graph, where the graph itself does not show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.compile.graph import arguments_of, calls_of, source_of, storages, tensors_of, value_of
from vllm_ir.compile.overlap import overlapping
from vllm_ir.compile.sources import written_argument
from vllm_ir.compile.torch_frames import kept_inputs
from vllm_ir.errors import UsedAfterDonation

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from vllm_ir.op import IrOp


def check_kept(module: torch.fx.GraphModule, ops: Mapping[str, IrOp]) -> None:
    """Raise if the program holds what it donates: Dynamo hands inputs past the graph, unlike what the graph makes.

    Asked before any cache is, since two programs that differ in nothing else have one graph.

    Args:
        module: the graph as Dynamo made it.
        ops: by name.

    Raises:
        UsedAfterDonation: the function returns a donated input, keeps it in an attribute, or may read it behind a
            graph break.
    """
    calls = calls_of(ops)
    donating = [
        (node, calls[node.target][0]) for node in module.graph.nodes if node.target in calls and calls[node.target][1]
    ]
    kept = kept_inputs() if donating else []
    if not kept:
        return
    for node, op in donating:
        args = arguments_of(node, op)
        for index in op.activation_indices:
            for tensor in tensors_of(value_of(args[index])):
                for each in kept:
                    if not storages(tensor) & storages(each.tensor) or not overlapping(tensor, each.tensor):
                        continue
                    raise UsedAfterDonation(
                        op=op.name,
                        argument=op.declaration.signature.names[index],
                        node=args[index].name,
                        user=each.holder,
                        where=source_of(node),
                        used=each.where,
                        expression=written_argument(node, args[index], index, op.declaration.signature.names[index]),
                    )
