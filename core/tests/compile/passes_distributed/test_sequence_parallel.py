"""What sequence parallelism finds in a graph, what it makes of it, and what it leaves alone, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from vllm_ir import ops, register_op
from vllm_ir.compile import SequenceParallelism
from vllm_ir.compile.passes.collectives import Group, Traffic, traffic
from vllm_ir.errors import UnknownOp

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN = 16
X, W = torch.linspace(-1, 1, 8 * HIDDEN).view(8, HIDDEN), torch.rand(HIDDEN)
fused: Any = ops.fused_add_rms_norm


def summed(x: Tensor, how: str = "sum", group: Any = None) -> Tensor:
    """Return what ranks bring, joined."""
    members: Any = group or dist.group.WORLD
    total: Tensor = collectives.all_reduce(x, how, members)
    return total


def norm(x: Tensor) -> Tensor:
    """Normalise rows."""
    rows: Tensor = ops.rms_norm(x, None, 1e-5)
    return rows


MISSES: dict[str, tuple[Callable[[Tensor], Any], Tensor, str]] = {
    "largest": (lambda x: norm(summed(x, "max")), X, "it reduces by 'max', and only sums are scattered"),
    "read": (lambda x: (norm(total := summed(x)), total + 1), X, "all of its rows are read by add, too"),
    "returned": (lambda x: (norm(total := summed(x)), total), X, "all of its rows are read by the graph's result, too"),
    "uneven": (lambda x: norm(summed(x)), X[:7], "7 rows do not divide by 4 ranks"),
    "none": (lambda x: norm(summed(x)), X[:0], "there are no rows"),
    "one": (lambda x: norm(summed(x)), X[0], "it is of one row, which is not shared out"),
    "turned": (lambda x: norm(summed(x).t()), X, "rms_norm reads aten.t.default of it, whose rows are not"),
    "cut": (lambda x: norm(summed(x)[:, :8]), X, "rms_norm reads aten.slice.Tensor of it, whose rows are not"),
    "columns": (lambda x: norm(summed(x.t())), torch.rand(HIDDEN, 8), "what it adds up is not contiguous"),
}
"""What is nearly what the pass looks for, with its input and the reason."""


@pytest.mark.parametrize("case", list(MISSES))
def test_what_is_left_alone_is_told(transform: Any, case: str) -> None:
    """Once, with the node, the line and the reason, and the graph has the all-reduce that it had."""
    function, x, reason = MISSES[case]
    module, record = transform(function, SequenceParallelism(), x, dynamic=False)
    assert record.changes == 0
    (miss,) = record.near_misses
    assert (miss.op, miss.node, miss.count) == ("all_reduce", "all_reduce", 1)
    assert reason in miss.reason
    assert "test_sequence_parallel.py:" in miss.where
    assert list(traffic(module.graph)) == ["all_reduce"]


def test_other_groups_are_left_alone(transform: Any) -> None:
    """The pass is for one group, and an all-reduce over another one is none of its business, but told."""
    other = dist.new_group([0, 1])
    _, record = transform(lambda x: norm(summed(x, group=other)), SequenceParallelism(), X)
    name = dist.group.WORLD.group_name  # type: ignore[union-attr] # the fixture made it
    assert [miss.reason for miss in record.near_misses] == [
        f"it is over the group {other.group_name!r}, and this pass is for {name!r}"
    ]
    _, record = transform(lambda x: norm(summed(x, group=other)), SequenceParallelism(other), X, dynamic=False)
    assert record.changes == 1


def test_a_group_of_one_rank_shares_nothing_out(transform: Any) -> None:
    """There is nobody to share with."""
    alone = dist.new_group([1])
    _, record = transform(lambda x: norm(summed(x, group=alone)), SequenceParallelism(alone), X)
    assert [miss.reason for miss in record.near_misses] == ["the group is of one rank"]


def test_a_graph_for_training_stays(transform: Any) -> None:
    """Its backward pass reads what the forward pass kept."""
    x = X.clone().requires_grad_()
    module, record = transform(lambda x: norm(summed(x)), SequenceParallelism(), x, dynamic=False)
    assert record.changes == 0
    assert "all_reduce" in traffic(module.graph)


def test_an_all_reduce_without_a_norm_is_no_near_miss(transform: Any) -> None:
    """It is none of this pass's business, and a report is read by people."""
    _, record = transform(lambda x: summed(x).relu() + norm(x), SequenceParallelism(), X)
    assert (record.changes, record.near_misses) == (0, ())


def layers(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """Add to a residual twice."""
    x, residual = fused(summed(x), residual, W, 1e-5)
    return fused(summed(torch.relu(x)), residual, W, 1e-5)  # type: ignore[no-any-return]


def test_a_residual_is_gathered_once_where_it_is_returned(transform: Any) -> None:
    """Between the layers it is not: two gatherings of normalised rows, and one of the last sum."""
    module, record = transform(layers, SequenceParallelism(), X, X, dynamic=False)
    assert record.changes == 2
    whole = X.nbytes
    assert traffic(module.graph) == {
        "reduce_scatter_tensor": Traffic(2, 2 * whole, 2 * whole * 3 // 4),
        "all_gather_into_tensor": Traffic(3, 3 * whole, 3 * whole * 3 // 4),
    }
    parts = [node.meta["val"] for node in module.graph.find_nodes(op="call_function", target=torch.ops.aten.select.int)]
    assert [tuple(part.shape) for part in parts] == [(2, HIDDEN)]


def test_a_part_is_this_ranks(transform: Any) -> None:
    """The second of four has the second quarter of a residual that every rank was given."""
    module, _ = transform(layers, SequenceParallelism(), X, X, dynamic=False)
    (select,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.select.int)
    assert select.args[1:] == (0, 1)


def test_a_sum_that_two_norms_read_is_scattered_once(transform: Any) -> None:
    """As the sum over a vocabulary is: the first norm's, and the first residual."""

    def function(x: Tensor, y: Tensor) -> Any:
        """Normalise a sum, and add it to another one."""
        embedded = summed(x)
        return norm(embedded), fused(summed(y), embedded, W, 1e-5)[0]

    module, record = transform(function, SequenceParallelism(), X, X + 1, dynamic=False)
    assert record.changes == 2
    assert {kind: each.calls for kind, each in traffic(module.graph).items()} == {
        "reduce_scatter_tensor": 2,
        "all_gather_into_tensor": 2,
    }


def test_an_open_number_that_is_certain_to_divide_needs_no_guard(transform: Any) -> None:
    """Of four tokens each, any number of sequences divides by four ranks, and one graph serves them."""

    def function(x: Tensor) -> Tensor:
        """Normalise a sum over sequences of four tokens."""
        return norm(summed(x.flatten(0, 1)))

    x = torch.rand(5, 4, HIDDEN)
    torch._dynamo.mark_dynamic(x, 0)
    module, record = transform(function, SequenceParallelism(), x)
    assert (record.changes, record.near_misses) == (1, ())
    assert "s" in str(module.graph.find_nodes(op="placeholder")[-1].meta["val"].shape[0])


def test_what_other_leading_sizes_show_is_read_by_rows(transform: Any) -> None:
    """A norm that reads the rows in another shape is one that reads them, and what follows gets its own shape."""

    def function(x: Tensor) -> Tensor:
        """Normalise heads of no tokens of their own, and go on in three dimensions."""
        return norm(summed(x).view(2, 4, HIDDEN)).relu()

    module, record = transform(function, SequenceParallelism(), X, dynamic=False)
    assert record.changes == 1
    (relu,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    assert tuple(relu.args[0].meta["val"].shape) == (2, 4, HIDDEN)
    (called,) = module.graph.find_nodes(op="call_function", target=ops.rms_norm.torch_op)
    assert tuple(called.meta["val"].shape) == (2, HIDDEN)


def test_an_op_of_another_distribution_takes_part_if_it_is_named(transform: Any) -> None:
    """The core cannot know that it works row by row."""

    @register_op
    def row_softmax(x: Tensor) -> Tensor:
        """Return rows that add up to one."""
        return x.softmax(-1).contiguous()

    _, record = transform(lambda x: row_softmax(summed(x)), SequenceParallelism(), X, dynamic=False)
    assert (record.changes, record.near_misses) == (0, ())
    made = SequenceParallelism(row_ops=["row_softmax"])
    _, record = transform(lambda x: row_softmax(summed(x)), made, X, dynamic=False)
    assert record.changes == 1


def test_rows_beside_the_activations_are_not_shared_out(transform: Any) -> None:
    """What an op takes for each row in another argument would be another row's on the second rank."""

    @register_op
    def row_offset(x: Tensor, offsets: Tensor) -> Tensor:
        """Return rows, each with offsets of its own added."""
        return (x + offsets).contiguous()

    made = SequenceParallelism(row_ops=["row_offset"])
    _, record = transform(lambda x, y: row_offset(summed(x), y), made, X, X + 1, dynamic=False)
    assert record.changes == 0
    assert [miss.reason for miss in record.near_misses] == [
        "row_offset: its argument 'offsets' has rows, and only activations are shared out"
    ]


def test_an_op_that_does_not_exist_is_an_error(transform: Any) -> None:
    """A name that is misspelt must not be a pass that does nothing."""
    with pytest.raises(UnknownOp, match="rms_nrom"):
        transform(lambda x: norm(summed(x)), SequenceParallelism(row_ops=["rms_nrom"]), X)


@pytest.mark.usefixtures("pretended")
def test_each_rank_has_a_key_of_its_own() -> None:
    """Its place in the group is a constant of its graphs, and ranks of one machine share the folder of a cache."""
    made = SequenceParallelism()
    keys = {made.key(), SequenceParallelism(guard=True).key(), SequenceParallelism(row_ops=("x",)).key()}
    made.group = Group(made.group.name, 4, 2)
    keys.add(made.key())
    made.group = Group(made.group.name, 8, 1)
    keys.add(made.key())
    assert len(keys) == 5
    assert SequenceParallelism().key() == SequenceParallelism().key()


def by_hand(x: Tensor, residual: Tensor, scale: Tensor) -> Any:
    """Add to a residual twice, as programs do that know no op for it, and quantise what is normalised."""
    residual = summed(x) + residual
    residual = summed(norm(residual)) * 0.5 + residual
    return ops.static_quant_fp8(norm(residual), scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fusions", [None, "all"])
def test_a_residual_that_a_program_adds_stays_a_part_too(transform: Any, dtype: torch.dtype, fusions: Any) -> None:
    """Fused to an op of a norm or not: nothing is gathered but normalised rows, the last of them as 8-bit floats."""
    x, scale = X.to(dtype), torch.ones(1)
    module, record = transform(by_hand, SequenceParallelism(), x, x, scale, dynamic=False, fusions=fusions)
    assert (record.changes, record.near_misses) == (2, ())
    found = traffic(module.graph)
    assert found["reduce_scatter_tensor"].calls == 2
    assert (found["all_gather_into_tensor"].calls, found["all_gather_into_tensor"].payload) == (2, x.nbytes + X.numel())


NEAR: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "unknown": (
        lambda x: norm(summed(x).relu()),
        "rms_norm reads aten.relu.default of it, which is not known to work row by row",
    ),
    "broadcast": (
        lambda x: norm(summed(x) + x[:1]),
        "add: its argument 'other' has rows of its own",
    ),
}
"""What stands between a sum and a norm, with the reason."""


@pytest.mark.parametrize("case", list(NEAR))
def test_what_stands_between_a_sum_and_a_norm_is_told(transform: Any, case: str) -> None:
    """An operation that may take rows together, and one that adds the same row to all."""
    function, reason = NEAR[case]
    _, record = transform(function, SequenceParallelism(), X, dynamic=False)
    assert record.changes == 0
    assert [miss.reason for miss in record.near_misses] == [reason]


def test_a_bias_behind_the_sum_is_added_to_parts(transform: Any) -> None:
    """It is the same for every row."""
    module, record = transform(lambda x: norm(summed(x) + x[0]), SequenceParallelism(), X, dynamic=False)
    assert record.changes == 1
    (add,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert tuple(add.meta["val"].shape) == (2, HIDDEN)
