"""Attention that asks no compiler, put on instances for a while and taken off again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers.integrations import sdpa_attention
from vllm_ir_host_transformers import attending, use_ir_ops

if TYPE_CHECKING:
    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]

pytestmark = pytest.mark.skipif(
    attending.QUESTION not in sdpa_attention.sdpa_attention_forward.__code__.co_names,
    reason="needs a Transformers that asks whether a compiler looks on when it attends",
)


@pytest.mark.parametrize("replaced", [False, True])
def test_only_attentions_change_and_all_come_back(replaced: bool, batch: Inputs, zoo: Zoo) -> None:
    """Over a class's forward and over ours; eager answers keep their bits, and an error leaves nothing behind."""
    model = zoo.build("llama")
    if replaced:
        use_ir_ops(model)
    before, wanted = {name: module.forward for name, module in model.named_modules()}, zoo.logits(model, batch)
    with pytest.raises(ZeroDivisionError), attending.as_in_eager(model):
        changed = {name for name, module in model.named_modules() if module.forward != before[name]}
        assert changed == {f"model.layers.{layer}.self_attn" for layer in range(zoo.layers)}
        assert torch.equal(zoo.logits(model, batch), wanted)
        raise ZeroDivisionError
    assert {name: module.forward for name, module in model.named_modules()} == before
    assert any("forward" in module.__dict__ for module in model.modules()) == replaced


def test_the_other_ways_to_attend_stay(batch: Inputs, zoo: Zoo) -> None:
    """A model with another attention chosen, which a graph runs as eager does, computes the same with it."""
    model = zoo.build("llama")
    model.set_attn_implementation("eager")
    wanted = zoo.logits(model, batch)
    with attending.as_in_eager(model):
        assert torch.equal(zoo.logits(model, batch), wanted)


def test_somebody_else_s_forward_stays(llama: Any) -> None:
    """What a user or accelerate put on an instance is not copied over."""
    attention = llama.model.layers[0].self_attn
    attention.forward = theirs = lambda *_: None
    with attending.as_in_eager(llama):
        assert attention.forward is theirs
    assert attention.forward is theirs


def test_a_model_without_attention_is_left_alone() -> None:
    """Nothing is found in it and nothing is put on it."""
    model = nn.Sequential(nn.Linear(2, 2))
    with attending.as_in_eager(model):
        assert all("forward" not in module.__dict__ for module in model.modules())
