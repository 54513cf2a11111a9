"""Products beside collectives, on fake tensors of a GPU: what becomes one operation, and what is left alone and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _symmetric_memory as symmetric
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir.compile import AsyncTensorParallelism
from vllm_ir.compile.passes.surroundings import Outcome, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS, HIDDEN = 8, 16


def gather(x: Tensor) -> Tensor:
    """Return the rows of all ranks."""
    c10d, everybody = torch.ops._c10d_functional, cast("Any", dist.group.WORLD)
    rows: Tensor = c10d.wait_tensor(c10d.all_gather_into_tensor(x, 4, everybody.group_name))
    return rows


def scatter(x: Tensor, how: str = "sum", group: Any = None) -> Tensor:
    """Return this rank's rows of a sum."""
    c10d, members = torch.ops._c10d_functional, group or cast("Any", dist.group.WORLD)
    rows: Tensor = c10d.wait_tensor(c10d.reduce_scatter_tensor(x, how, 4, members.group_name))
    return rows


def draw(function: Callable[..., Any], device: str = "cuda") -> Any:
    """Return a function as a graph of what it does to tokens, a matrix for all of them, and a bias."""
    with FakeTensorMode():
        sizes = ((TOKENS, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN,))
        return make_fx(function)(*(torch.empty(each, device=device) for each in sizes))


def run(function: Callable[..., Any], device: str = "cuda", *, enabled: bool = True) -> tuple[Outcome, list[str]]:
    """Return what the pass does to a function's graph, and what the graph calls behind it."""
    module = draw(function, device)
    with symmetric._test_mode(None if enabled else {"another"}):
        outcome = AsyncTensorParallelism().transform(module.graph, Surroundings())
    module.graph.lint()
    assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function")
    return outcome, [str(node.target).removesuffix(".default") for node in module.graph.nodes if node.op[0] == "c"]


@pytest.mark.usefixtures("pretended")
def test_a_product_and_its_scattering_become_one() -> None:
    """With the result that the wait had."""
    outcome, calls = run(lambda x, w, *_: scatter(x @ w) + 1)
    assert (outcome.changes, outcome.near_misses) == (1, ())
    assert calls == ["symm_mem.fused_matmul_reduce_scatter", "aten.add.Tensor"]


@pytest.mark.usefixtures("pretended")
def test_all_products_of_gathered_rows_become_one() -> None:
    """Also one whose matrix is turned just before it; the rows themselves are not returned where nobody reads them."""

    def function(x: Tensor, w: Tensor, _: Tensor) -> Any:
        """Multiply gathered rows three times."""
        rows = gather(x)
        return rows @ w, rows @ w.t(), rows @ (w + 1)

    module = draw(function)
    shapes = [node.meta["val"].shape for node in module.graph.output_node().args[0]]
    with symmetric._test_mode():
        outcome = AsyncTensorParallelism().transform(module.graph, Surroundings())
    module.graph.lint()
    assert outcome.changes == 1
    (fused,) = module.graph.find_nodes(op="call_function", target=torch.ops.symm_mem.fused_all_gather_matmul.default)
    assert len(fused.args[1]) == 3
    assert fused.kwargs == {"return_A": False}
    assert [node.meta["val"].shape for node in module.graph.output_node().args[0]] == shapes
    assert not module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)


@pytest.mark.usefixtures("pretended")
def test_gathered_rows_that_others_read_are_returned() -> None:
    """As by the residual of a program that adds to what it has gathered."""
    module = draw(lambda x, w, *_: (rows := gather(x)) @ w + rows)
    with symmetric._test_mode():
        outcome = AsyncTensorParallelism().transform(module.graph, Surroundings())
    module.graph.lint()
    assert outcome.changes == 1
    (fused,) = module.graph.find_nodes(op="call_function", target=torch.ops.symm_mem.fused_all_gather_matmul.default)
    assert fused.kwargs == {"return_A": True}


def dependent(x: Tensor, w: Tensor, _: Tensor) -> Tensor:
    """Multiply gathered rows by what was made of them."""
    rows = gather(x)
    return rows @ (rows.t() @ rows + w)


MISSES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "bias": (
        lambda x, w, b: scatter(torch.addmm(b, x, w)),
        "reduce_scatter_tensor",
        "addmm is aten.addmm.default, and wanted is the plain product of two matrices, aten.mm",
    ),
    "largest": (
        lambda x, w, *_: scatter(x @ w, "max"),
        "reduce_scatter_tensor",
        "it reduces by 'max', and PyTorch has this for 'sum' and 'avg'",
    ),
    "read": (
        lambda x, w, *_: (scatter(product := x @ w), product + 1),
        "reduce_scatter_tensor",
        "its product is read by add, too",
    ),
    "added": (
        lambda x, w, b: torch.addmm(b, gather(x), w),
        "all_gather_into_tensor",
        "addmm is aten.addmm.default, and wanted is the plain product of two matrices, aten.mm",
    ),
    "second": (
        lambda x, *_: torch.mm(x.new_empty(HIDDEN, 4 * TOKENS), gather(x)),
        "all_gather_into_tensor",
        "it is the second matrix of its product",
    ),
    "dependent": (dependent, "all_gather_into_tensor", "the other matrix of its product depends on it"),
}
"""What is nearly what the pass looks for, with the collective and the reason."""


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("case", list(MISSES))
def test_what_is_left_alone_is_told(case: str) -> None:
    """The collective, and why its product does not fit."""
    function, op, reason = MISSES[case]
    outcome, calls = run(function)
    assert outcome.changes == 0
    assert reason in [miss.reason for miss in outcome.near_misses if miss.op == op]
    assert not any("symm_mem" in call for call in calls)


@pytest.mark.usefixtures("pretended")
def test_a_collective_beside_no_product_is_no_near_miss() -> None:
    """There is nothing to overlap it with."""
    outcome, _ = run(lambda x, w, *_: (scatter(x + 1), gather(w).relu()))
    assert outcome == Outcome(0)


@pytest.mark.usefixtures("pretended")
def test_another_group_is_left_alone() -> None:
    """Symmetric memory is a matter of a group's ranks."""
    other = dist.new_group([0, 1])
    outcome, _ = run(lambda x, w, *_: scatter(x @ w, group=other))
    assert [miss.reason.partition(",")[0] for miss in outcome.near_misses] == [
        f"it is over the group {other.group_name!r}"
    ]


@pytest.mark.usefixtures("pretended")
def test_where_pytorch_has_it_not_it_is_said() -> None:
    """On a device without kernels, and in a group that was not made ready."""
    outcome, calls = run(lambda x, w, *_: scatter(x @ w), "cpu")
    assert [miss.reason for miss in outcome.near_misses] == [
        "PyTorch has no fused_matmul_reduce_scatter for tensors on 'cpu'"
    ]
    outcome, calls = run(lambda x, w, *_: scatter(x @ w), enabled=False)
    (miss,) = outcome.near_misses
    assert miss.reason.startswith("symmetric memory is not enabled for the group '")
    assert not any("symm_mem" in call for call in calls)
