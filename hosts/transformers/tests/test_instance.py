"""The forward of one instance: put, seen, taken away."""

from __future__ import annotations

from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from vllm_ir_host_transformers import instance


def zero(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return nothing but zeros."""
    return x * 0


def test_put_and_clear_concern_one_instance() -> None:
    """The class and its other instances run what they ran."""
    one, other, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(1, 2)
    instance.put(one, zero)
    assert instance.is_ours(one.forward)
    assert not instance.is_ours(other.forward)
    assert torch.equal(one(x), x * 0)
    assert not torch.equal(other(x), x * 0)
    instance.clear(nn.ModuleList([one, other]))
    assert "forward" not in one.__dict__


@pytest.mark.parametrize(
    ("forward", "wanted"),
    [
        (None, False),
        (lambda module: MethodType(type(module).forward, module), False),
        (lambda module: MethodType(zero, module), True),
        (lambda _: len, True),
    ],
    ids=["none", "its class's own", "a method", "a function"],
)
def test_somebody_else_s_forward_is_seen(forward: Any, wanted: bool) -> None:
    """A forward that is neither ours nor the class's own belongs to somebody."""
    zero.__dict__.pop(instance.MARK, None)
    module = nn.Linear(2, 2)
    if forward is not None:
        module.__dict__["forward"] = forward(module)
    assert (instance.occupied(module) is not None) is wanted


@pytest.mark.parametrize(
    "register", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]
)
def test_a_hook_of_any_kind_is_seen(register: str) -> None:
    """Before, after and backward."""
    module = nn.Linear(2, 2)
    assert not instance.hooked(module)
    getattr(module, register)(lambda *_: None)
    assert instance.hooked(module)


def test_a_hook_deep_inside_is_seen() -> None:
    """What a module deep inside returns may be what the outer one returns."""
    inner = nn.Linear(2, 2)
    outer = nn.Sequential(nn.Sequential(nn.Identity(), inner))
    assert not instance.watched(outer)
    inner.register_forward_hook(lambda *_: None)
    assert instance.watched(outer)
