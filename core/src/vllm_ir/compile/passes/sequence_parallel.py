"""Sequence parallelism: what tensor parallelism adds up on every rank is normalised by each rank for its own rows.

An all-reduce followed by a normalisation leaves every rank with the same rows, and each of them does the same work on
all. Here the sum is scattered by rows, each rank normalises its own, and the rows are gathered where somebody needs all
of them. What goes on from layer to layer by normalisations alone, the residual, is never gathered in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.compile.graph import contiguous, value_of
from vllm_ir.compile.passes.base import GraphPass
from vllm_ir.compile.passes.collectives import Group, Misses, Reduction, reductions
from vllm_ir.compile.passes.sequence_parallel_rewrite import Rewrite
from vllm_ir.compile.passes.sequence_parallel_rows import RowCall, RowOps, obstacle, same_sizes
from vllm_ir.compile.passes.sequence_parallel_views import FLAT, open_sizes, readers, rows
from vllm_ir.compile.passes.surroundings import Outcome, Surroundings

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import fx
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


class SequenceParallelism(GraphPass):
    """Replaces all-reduce and norm by reduce-scatter, norm on a part of the rows, and all-gather.

    It takes as given what tensor parallelism is: weights, scales, and a residual that the graph is given are the same
    on every rank of the group, and all ranks run the graph with the same sizes.

    Args:
        group: a process group that tensor parallelism is over, its name, or a device mesh of one dimension; all ranks
            when None. All-reduces over others stay as they are.
        guard: where the number of rows is open, compile one graph for numbers that the group's size divides and one
            for others; without, such a graph stays as it is, unless it is certain that the number divides.
        row_ops: names of ops beside those of the core that make each row of a result from the same row of their
            activations alone, such as a norm of another distribution.

    Attributes:
        name: how logs and reports call it.
        after: the passes that it goes behind: a residual that is added by itself is none that a norm adds.
        group: what the group is known by.
        guard: as given.
        row_ops: as given.

    Raises:
        NoProcessGroup: torch.distributed is not initialised in this process.
        BadProcessGroup: the group is none, or none that this process is in.
    """

    name = "sequence_parallelism"
    after = ("add_norm",)

    def __init__(
        self, group: ProcessGroup | DeviceMesh | str | None = None, *, guard: bool = False, row_ops: Iterable[str] = ()
    ) -> None:
        self.group = Group.of(group, wanted="SequenceParallelism")
        self.guard = guard
        self.row_ops = tuple(row_ops)

    def apply(self, graph: fx.Graph) -> int:
        """Change a graph for inference where it stands, and return how many all-reduces were taken apart."""
        return self.transform(graph, Surroundings()).changes

    def transform(self, graph: fx.Graph, around: Surroundings) -> Outcome:
        """Change a graph where it stands.

        Args:
            graph: functional, with fake results in each node's metadata.
            around: what holds for it.

        Returns:
            how many all-reduces were taken apart, and what kept others from it.

        Raises:
            UnknownOp: `row_ops` names an op that does not exist.
        """
        ops, misses = RowOps(around.ops(), self.row_ops), Misses()
        taken: list[Reduction] = []
        for reduction in reductions(graph):
            reason = self._judge(reduction, ops, is_inference=around.is_inference)
            if reason:
                misses.add("all_reduce", reduction.start, reason)
            elif reason is not None:
                taken.append(reduction)
        if taken:
            Rewrite(graph, self.group, ops, misses).apply(taken)
        return Outcome(len(taken), misses.all())

    def _judge(self, reduction: Reduction, ops: RowOps, *, is_inference: bool) -> str | None:
        """Return why an all-reduce stays as it is, empty where it does not, or None where no norm is behind it."""
        end = reduction.end
        users = readers(end)
        found = [call for user in users if (call := ops.call(user)) is not None and call.reads(end)]
        calls = [call for call in found if not call.plain or ops.leads_to_op(call)]
        if not calls:
            return _hidden(users, ops)
        if not is_inference:
            return "the graph is for training, and what it keeps for the backward pass is needed whole"
        return (
            self._wrong_collective(reduction)
            or _wrong_layout(reduction)
            or _other_readers(users, calls)
            or next(
                (f"{call.node.name}: {why}" for call in calls if (why := obstacle(call) or _unshaped(call, end))), ""
            )
            or self._wrong_rows(rows(end))
        )

    def _wrong_collective(self, reduction: Reduction) -> str:
        """Return why an all-reduce is none that this is about; empty if it is."""
        if reduction.group != self.group.name:
            return f"it is over the group {reduction.group!r}, and this pass is for {self.group.name!r}"
        if reduction.how != "sum":
            return f"it reduces by {reduction.how!r}, and only sums are scattered"
        if self.group.size == 1:
            return "the group is of one rank"
        return ""

    def _wrong_rows(self, count: int | torch.SymInt) -> str:
        """Return why a number of rows cannot be shared out; empty if it can. May add a guard if that was asked for."""
        size = self.group.size
        if isinstance(count, int):
            if count == 0:
                return "there are no rows"
            return f"{count} rows do not divide by {size} ranks" if count % size else ""
        from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

        even = count % size == 0
        if statically_known_true(even):
            return ""
        if not self.guard:
            return (
                f"the number of rows, {count}, is open, and whether {size} ranks divide it is not known:"
                " guard=True compiles one graph for numbers that they do and one for others"
            )
        return "" if guard_or_false(even) else f"the number of rows, {count}, does not divide by {size} ranks here"


def _hidden(users: list[fx.Node], ops: RowOps) -> str | None:
    """Return which operation stands between a sum and a norm, or None where no norm is near."""
    for user in users:
        for behind in user.users:
            call = ops.call(behind)
            if call is not None and not call.plain and ops.call(user) is None:
                shown = bool(getattr(user.target, "is_view", False))
                why = "whose rows are not those of the sum" if shown else "which is not known to work row by row"
                return f"{behind.name} reads {user.target} of it, {why}"
    return None


def _wrong_layout(reduction: Reduction) -> str:
    """Return why a tensor cannot be scattered by rows; empty if it can."""
    value = value_of(reduction.end)
    if value.dim() < FLAT:
        return "it is of one row, which is not shared out"
    if not contiguous(value_of(reduction.source)):
        return "what it adds up is not contiguous"
    return ""


def _unshaped(call: RowCall, end: fx.Node) -> str:
    """Return why gathered rows could not be given the leading sizes that a call had; empty if they can."""
    leading = value_of(call.activations[0][1]).shape[:-1]
    if open_sizes(leading) > 1 and not same_sizes(leading, value_of(end).shape[:-1]):
        return "several of the leading sizes in which it reads the sum are open"
    return ""


def _other_readers(users: list[fx.Node], calls: list[RowCall]) -> str:
    """Return who else needs all rows of a sum; empty if nobody does."""
    mine = {call.node for call in calls}
    others = [user.name if user.op != "output" else "the graph's result" for user in users if user not in mine]
    return f"all of its rows are read by {', '.join(others)}, too" if others else ""
