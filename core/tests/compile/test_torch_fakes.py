"""Fake tensors made by hand: of the kind that operations make, and in the memory that they should be in."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm_ir.compile.graph import storages
from vllm_ir.compile.torch_fakes import twin, view_twin


@pytest.mark.parametrize("inside", [False, True])
def test_a_twin_has_memory_of_its_own(inside: bool) -> None:
    """And size, strides, dtype and device of the other, also while the mode is in force."""
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(4, 8, dtype=torch.bfloat16, device="cuda").t()
    with mode if inside else contextlib.nullcontext():
        made = twin(tensor)
    assert made is not None
    assert (made.shape, made.stride(), made.dtype, made.device) == (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
    )
    assert not storages(made) & storages(tensor)


@pytest.mark.parametrize("inside", [False, True])
def test_a_twin_of_a_view_lies_where_the_view_lies(inside: bool) -> None:
    """In the memory of another tensor, at the same place."""
    mode = FakeTensorMode()
    with mode:
        tensor, other = torch.empty(4, 8), torch.empty(4, 8)
        view = tensor[1:, 2:4].t()
    with mode if inside else contextlib.nullcontext():
        made = view_twin(view, other)
    assert made is not None
    assert (made.shape, made.stride(), made.storage_offset(), made.device) == (
        view.shape,
        view.stride(),
        view.storage_offset(),
        view.device,
    )
    assert storages(made) == storages(other) != storages(tensor)


def test_what_only_an_operation_can_make_is_left_to_it() -> None:
    """Real tensors, sparse ones, views as if they were none, and views of another dtype."""
    mode = FakeTensorMode()
    with mode:
        tensor = torch.empty(4, 8)
        sparse = torch.empty(4, 8, layout=torch.sparse_coo)
        whole = tensor.view(torch.int32)
    assert [twin(each) for each in (torch.empty(2), sparse, tensor[1:])] == [None] * 3
    assert view_twin(whole, tensor) is None
    assert view_twin(tensor[1:], torch.empty(4, 8)) is None
