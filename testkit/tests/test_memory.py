"""The memory behind tensors."""

from __future__ import annotations

import torch
from vllm_ir_testkit import memory
from vllm_ir_testkit.layouts import LAYOUTS
from vllm_ir_testkit.memory import Snapshot


def test_a_change_inside_and_around_a_view_is_told_apart() -> None:
    """Writing to the view is not writing around it."""
    x = LAYOUTS["packed"](torch.randn(3, 4).bfloat16())
    before = Snapshot.take((x, 1.0))
    assert before.changed((x, 1.0)) == []
    x.add_(1)
    assert before.changed((x, 1.0)) == [0]
    assert not before.changed_around((x, 1.0), 0)
    torch.as_strided(x, (1,), (1,), 0).zero_()
    assert before.changed_around((x, 1.0), 0)


def test_rows_that_share_memory_can_be_looked_at() -> None:
    """A stride of zero covers one row."""
    x = LAYOUTS["repeated"](torch.randn(3, 4))
    before = Snapshot.take((x,))
    torch.as_strided(x, (4,), (1,), 0).add_(1)
    assert before.changed((x,)) == [0]
    assert not before.changed_around((x,), 0)
    torch.as_strided(x, (4,), (1,), 4).add_(1)
    assert before.changed_around((x,), 0)
    assert not memory.share(x, torch.empty(0))


def test_the_same_place() -> None:
    """A view of a part is not the tensor itself."""
    x = torch.randn(4, 4)
    assert memory.same_place(x, x.view(4, 4))
    assert not memory.same_place(x, x[:2])
    assert not memory.same_place(x, x.T)
    assert not memory.share(x, x.clone())
