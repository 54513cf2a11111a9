"""The group that a pass is for: how it is named, and what is said where it cannot be."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch.distributed as dist
from vllm_ir.compile import AsyncTensorParallelism, SequenceParallelism
from vllm_ir.compile.passes.collectives import Group
from vllm_ir.errors import BadProcessGroup, NoProcessGroup

PASSES = [SequenceParallelism, AsyncTensorParallelism]


def test_a_group_is_named_in_four_ways(pretended: Any) -> None:
    """As nothing, as itself, by its name, and by a mesh of one dimension over its ranks."""
    from torch.distributed.device_mesh import DeviceMesh

    wanted = Group(pretended.group_name, 4, 1)
    mesh = DeviceMesh("cpu", list(range(4)))
    for group in (None, pretended, pretended.group_name, mesh):
        found = Group.of(group, wanted="a test")
        assert (found.size, found.rank) == (4, 1)
        assert found == wanted or group is mesh


@pytest.mark.parametrize("made", PASSES)
def test_without_ranks_it_is_said(made: Any) -> None:
    """Before anything is compiled: who wants what, and what to call."""
    with pytest.raises(NoProcessGroup) as caught:
        made()
    assert str(caught.value) == (
        f"{made.__name__} works over a process group of torch.distributed, which is not initialised in this process."
        " Call torch.distributed.init_process_group first."
    )
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - what was just dumped


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("made", PASSES)
def test_what_is_no_group_is_said(made: Any) -> None:
    """A name of none, a group of others, a mesh of two dimensions, and a number."""
    from torch.distributed.device_mesh import DeviceMesh

    others = dist.new_group([2, 3])
    square = DeviceMesh("cpu", [[0, 1], [2, 3]])
    for group, said in (
        ("nobody", "got 'nobody', which names none that this process is in"),
        (others, "got a group that this process is not in"),
        (square, "got a device mesh of 2 dimensions"),
        (4, "got 4"),
    ):
        with pytest.raises(BadProcessGroup) as caught:
            made(group)
        assert f"{made.__name__} works over one process group and {said}. Give it a process group" in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - what was just dumped
