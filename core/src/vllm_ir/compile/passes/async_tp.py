"""Async tensor parallelism: a product and the collective beside it as one operation that overlaps the two.

PyTorch has two such operations, on symmetric memory: a product whose parts are sent off as they are made, in place of
a product and a reduce-scatter, and products of parts as they arrive, in place of an all-gather and products.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.compile.graph import value_of
from vllm_ir.compile.passes.async_tp_pairs import Gathered, Scattered, gathered, scattered
from vllm_ir.compile.passes.base import GraphPass
from vllm_ir.compile.passes.collectives import Group, Misses, functional, name_of
from vllm_ir.compile.passes.surroundings import Outcome, Surroundings

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class AsyncTensorParallelism(GraphPass):
    """Replaces products beside a reduce-scatter or an all-gather by PyTorch's operations on symmetric memory.

    It finds what sequence parallelism leaves, and what a program has written itself. Where PyTorch does not offer the
    operations, for a device or a group, the graph stays as it is and the report says why.

    Args:
        group: a process group, its name, or a device mesh of one dimension; all ranks when None. Collectives over
            others stay as they are.

    Attributes:
        name: how logs and reports call it.
        after: the passes that it goes behind.
        group: what the group is known by.

    Raises:
        NoProcessGroup: torch.distributed is not initialised in this process.
        BadProcessGroup: the group is none, or none that this process is in.
    """

    name = "async_tensor_parallelism"
    after = ("sequence_parallelism",)

    def __init__(self, group: ProcessGroup | DeviceMesh | str | None = None) -> None:
        self.group = Group.of(group, wanted="AsyncTensorParallelism")

    def apply(self, graph: fx.Graph) -> int:
        """Change a graph where it stands, and return how many collectives became part of a product."""
        return self.transform(graph, Surroundings()).changes

    def transform(self, graph: fx.Graph, around: Surroundings) -> Outcome:  # noqa: ARG002 - the same in all graphs
        """Change a graph where it stands.

        Args:
            graph: functional, with fake results in each node's metadata.
            around: what holds for it.

        Returns:
            how many collectives became part of a product, and what kept others from it.
        """
        misses, c10d, changes = Misses(), functional(), 0
        for find, kind in ((scattered, "reduce_scatter_tensor"), (gathered, "all_gather_into_tensor")):
            for node in graph.find_nodes(op="call_function", target=getattr(c10d, kind).default):
                found = find(node)
                if found is None:
                    continue
                reason = self._obstacle(found, node)
                if isinstance(found, str) or reason:
                    misses.add(kind, node, reason)
                else:
                    found.apply(graph)
                    changes += 1
        return Outcome(changes, misses.all())

    def _obstacle(self, found: Scattered | Gathered | str, node: fx.Node) -> str:
        """Return what keeps a collective from becoming part of its products, in words; empty if nothing does."""
        group = name_of(node.args[-1])
        if group != self.group.name:
            return f"it is over the group {group!r}, and this pass is for {self.group.name!r}"
        return found if isinstance(found, str) else unavailable(found.operation, value_of(node).device, group)


def unavailable(operation: str, device: torch.device, group: str) -> str:
    """Return why PyTorch does not offer an operation on symmetric memory; empty if it does.

    Args:
        operation: its name in `torch.ops.symm_mem`.
        device: where the tensors are.
        group: the name of the process group.
    """
    import torch

    try:
        from torch.distributed import _symmetric_memory as symmetric
    except ImportError:
        return f"torch {torch.__version__} is built without symmetric memory"
    key = torch._C._dispatch_key_for_device(device.type)  # noqa: SLF001 - PyTorch's own passes ask so, too
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"symm_mem::{operation}", key):  # noqa: SLF001 - the same
        return f"PyTorch has no {operation} for tensors on {device.type!r}"
    if not symmetric.is_symm_mem_enabled_for_group(group):  # type: ignore[arg-type] # before 2.12 it took a plain text
        return (
            f"symmetric memory is not enabled for the group {group!r}: call"
            f" torch.distributed._symmetric_memory.enable_symm_mem_for_group({group!r}) before compiling"
        )
    return ""
