"""Whether tensors take the same memory, and what an op in parts does with donated ones that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from vllm_ir import ops
from vllm_ir.memory import lie_apart, storage_of

if TYPE_CHECKING:
    from collections.abc import Callable

ADD: Any = ops.fused_add_rms_norm_static_quant_fp8
DYNAMIC: Any = ops.fused_add_rms_norm_dynamic_quant_fp8


def pairs() -> dict[str, tuple[tuple[Any, ...], bool]]:
    """Return arguments of which the first may be written, and whether it is apart from the others."""
    whole = torch.randn(8, 64)
    return {
        "other memory": ((torch.randn(8, 64), whole, None, 1e-5), True),
        "itself again": ((whole, whole), False),
        "a row of it": ((whole, whole[7]), False),
        "one element of it": ((whole, whole[3, 5]), False),
        "it is a row": ((whole[7], whole), False),
        "rows beside each other": ((whole[:4], whole[4:]), True),
        "columns of the same rows": ((whole[:, :32], whole[:, 32:]), False),
        "in a list": ((whole, [torch.ones(3), whole[2]]), False),
        "others may share among themselves": ((torch.randn(3), whole, whole[0]), True),
        "nothing in the middle of it": ((whole, whole[4:4]), True),
        "a parameter": ((torch.nn.Parameter(whole[:1]), whole[0]), False),
        "without strides": ((torch.ones(2, 2).to_sparse(), whole), False),
        "on no device": ((torch.ones(2, device="meta"), whole), True),
        "both on no device": ((torch.ones(2, device="meta"), torch.ones(2, device="meta")), False),
    }


@pytest.mark.parametrize("name", pairs())
def test_what_shares_memory_is_told(name: str) -> None:
    """What may be written is held against every other tensor, and what only is read against nothing."""
    args, wanted = pairs()[name]
    assert lie_apart(args, (0,)) is wanted


def test_while_something_is_traced_nothing_is_told_apart() -> None:
    """A tensor that stands for others has no address, and a graph in the making keeps what it is given."""
    with FakeTensorMode() as mode:
        assert not lie_apart((mode.from_tensor(torch.ones(3)), mode.from_tensor(torch.ones(3))), (0,))
    seen: list[bool] = []

    @torch.compile(backend="eager", fullgraph=True)
    def traced(x: torch.Tensor) -> torch.Tensor:
        """Ask while Dynamo traces."""
        return x + 1 if lie_apart((x,), (0,)) else x + 2

    seen.append(bool(traced(torch.zeros(2))[0] == 2))
    assert seen == [True]


def within(op: str, home: int) -> tuple[Any, ...]:
    """Return a call that reads something out of x (0) or out of the residual (1)."""
    given = [torch.randn(9, 64) for _ in range(2)]
    value = given[home].flatten()[-1:]
    weight = given[home][4]
    if op == "scale":
        value.fill_(0.02)
        return ADD, *given, torch.rand(64), value, 1e-5
    if op == "weight":
        return ADD, *given, weight, torch.tensor([0.02]), 1e-5
    if op == "bound":
        value.fill_(1.5)
        return DYNAMIC, *given, torch.rand(64), 1e-5, True, value
    return DYNAMIC, *given, weight, 1e-5, False


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("home", [0, 1])
@pytest.mark.parametrize("what", ["scale", "weight", "bound", "weight of a dynamic one"])
def test_parts_do_not_write_what_is_read_behind_them(what: str, home: int, add_provider: Callable[..., Any]) -> None:
    """A scale, a bound or a weight in a donated activation: native's answer, and no input changed."""
    add_provider(ops.fused_add_rms_norm, "writes", 1.0, inplace=True)
    op, *args = within(what, home)
    before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    wanted = op.declaration.native(*before)
    with ops.fused_add_rms_norm.set_priority("writes"), op.set_priority("unfused"):
        got = op.maybe_inplace(*args)
    for mine, theirs in zip(got, wanted, strict=True):
        assert torch.equal(mine.float(), theirs.float())
    for now, kept in zip(args, before, strict=True):
        assert not isinstance(now, torch.Tensor) or torch.equal(now, kept)


def test_views_share_a_storage() -> None:
    """What has no memory of its own has none to share."""
    x = torch.ones(2, 3)
    assert storage_of(x) == storage_of(x.t()) is not None
    assert storage_of(x) != storage_of(x.clone())
    assert storage_of(x.to_sparse()) is None
