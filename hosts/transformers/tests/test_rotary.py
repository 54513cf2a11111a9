"""Rotary embedding: one table per forward pass, the bits of the model's own rotation, or the model's own itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from vllm_ir import Unsupported
from vllm_ir_host_transformers import rotary, rotations, use_ir_ops
from vllm_ir_host_transformers.rotations import Form

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]
LLAMA = rotations.stand_in(apply_rotary_pos_emb, Form("halves"))


def operands(batch: int, rows: int, dtype: torch.dtype = torch.float32, size: int = 8) -> list[torch.Tensor]:
    """Return queries, keys, cosines and sines of five tokens."""
    torch.manual_seed(0)
    q, k = (torch.randn(batch, 5, heads, size).to(dtype).transpose(1, 2) for heads in (4, 2))
    angle = torch.randn(rows, 5, size // 2).repeat(1, 1, 2)
    return [q, k, angle.cos().to(dtype), angle.sin().to(dtype)]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a list that grows with every table that is built."""
    times: list[int] = []
    own = rotations._build

    def counted(*args: Any) -> Any:
        """Count a table and build it."""
        times.append(1)
        return own(*args)

    monkeypatch.setattr(rotations, "_build", counted)
    return times


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (3, 3), (3, 1)])
def test_it_has_the_bits_and_the_layout_of_the_model_s_own(
    batch: int, rows: int, dtype: torch.dtype, counts: Callable[[], dict[str, int]]
) -> None:
    """Positions of each prompt, or one row of positions for all of them."""
    values = operands(batch, rows, dtype)
    wanted = apply_rotary_pos_emb(*values)
    got = LLAMA(*values)
    assert all(map(torch.equal, got, wanted))
    assert [part.stride() for part in got] == [part.stride() for part in wanted]
    assert counts() == {"rotary_embedding": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, cos, sin: ((q, k, cos, sin), {"unsqueeze_dim": 1}),
        lambda q, k, cos, sin: ((q, k, cos.double(), sin.double()), {}),
        lambda q, k, cos, sin: ((q.double(), k.double(), cos, sin), {}),
        lambda q, k, cos, sin: ((q, k, cos[:, :1], sin[:, :1]), {}),
        lambda q, k, cos, sin: ((q.transpose(1, 2), k.transpose(1, 2), cos, sin, 2), {}),
    ],
    ids=["keyword", "cosines wider", "queries wider", "broadcast", "other layout"],
)
def test_calls_that_the_op_does_not_mean_go_to_the_model_s_own(
    change: Callable[..., tuple[Any, Any]], counts: Callable[[], dict[str, int]]
) -> None:
    """Other arguments, dtypes and shapes: the same result as ever, and no op."""
    args, kwargs = change(*operands(2, 2))
    wanted = apply_rotary_pos_emb(*args, **kwargs)
    got = LLAMA(*args, **kwargs)
    assert all(map(torch.equal, got, wanted))
    assert counts() == {}


def test_a_pass_builds_one_table(llama: Any, batch: Inputs, zoo: Zoo, built: list[int]) -> None:
    """All layers of one forward pass share it, and the next pass has its own."""
    use_ir_ops(llama)
    built.clear()  # Recognising the model's own rotation builds some, too.
    zoo.logits(llama, batch)
    assert len(built) == 1
    zoo.logits(llama, batch)
    assert len(built) == 2


def test_a_pass_with_two_kinds_of_layers_builds_two(batch: Inputs, zoo: Zoo, built: list[int]) -> None:
    """Gemma 3 has cosines for its sliding layers and others for the rest."""
    model = zoo.build("gemma3")
    kinds = {layer.self_attn.layer_type for layer in model.model.layers}
    use_ir_ops(model)
    built.clear()
    zoo.logits(model, batch)
    assert len(built) == len(kinds) == 2


def test_cosines_that_change_get_a_new_table(built: list[int]) -> None:
    """A table is kept for the cosines as they were, for their sines and for one batch size."""
    rotate = LLAMA
    q, k, cos, sin = operands(2, 1)
    rotate(q, k, cos, sin)
    rotate(q, k, cos, sin)
    assert len(built) == 1
    for table in (cos, sin):
        table.mul_(2)
        assert all(map(torch.equal, rotate(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin)))
    assert all(map(torch.equal, rotate(q, k, cos, sin.clone()), apply_rotary_pos_emb(q, k, cos, sin)))
    assert all(map(torch.equal, rotate(q[:1], k[:1], cos, sin), apply_rotary_pos_emb(q[:1], k[:1], cos, sin)))
    assert len(built) == 5


def test_inference_mode_has_no_versions_and_works(built: list[int]) -> None:
    """Tensors of inference mode cannot tell whether they changed; they are told apart by identity."""
    with torch.inference_mode():
        values = operands(1, 1)
        rotate = LLAMA
        for _ in range(2):
            assert all(map(torch.equal, rotate(*values), apply_rotary_pos_emb(*values)))
    assert len(built) == 1


def test_cosines_with_a_graph_keep_no_table() -> None:
    """A learned angle gets its gradient in every backward pass."""
    q, k, _, _ = operands(1, 1)
    angle = torch.randn(1, 5, 8, requires_grad=True)
    for _ in range(2):
        cos, sin = angle.cos(), angle.sin()
        LLAMA(q, k, cos, sin)
        assert not hasattr(cos, rotations.KEPT)


class Angles(nn.Module):
    """An embedding whose tables a test chooses."""

    def __init__(self, **tables: Any) -> None:
        super().__init__()
        self.size, self.wide, self.twice = tables.get("size", 16), tables.get("wide", False), tables.get("twice", True)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines."""
        angle = torch.randn(1, position_ids.shape[1], self.size // 2)
        angle = angle.repeat(1, 1, 2) if self.twice else angle.repeat_interleave(2, dim=-1)
        dtype = torch.float64 if self.wide else x.dtype
        return angle.cos().to(dtype), angle.sin().to(dtype)


@pytest.mark.parametrize(
    ("embedding", "reason"),
    [
        (None, "no rotary_emb stands above it, so its cosines cannot be checked"),
        (Angles(wide=True), "it is float32 and its cosines are float64"),
        (Angles(twice=False), "Angles does not write its cosines twice"),
        (nn.Linear(2, 2), "Linear cannot be asked for cosines (TypeError)"),
    ],
)
def test_other_cosines_are_left_with_their_reason(llama: Any, embedding: nn.Module | None, reason: str) -> None:
    """What cannot be turned into the op's table, or cannot be known, stays with the model."""
    found = rotary.recognise(llama.model.layers[0].self_attn, embedding)
    assert isinstance(found, Unsupported)
    assert found.reason == reason


def test_an_embedding_that_adapts_itself_is_asked_as_a_copy(zoo: Zoo) -> None:
    """Looking at a model with dynamic scaling does not change what it answers next."""
    model = zoo.build("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    embedding = type(model.model.rotary_emb)(model.config)
    model.model.rotary_emb = embedding
    long = {"input_ids": torch.randint(2, 97, (1, 200), generator=torch.Generator().manual_seed(0))}
    before = zoo.logits(model, long)
    frequencies = embedding.inv_freq.clone()
    use_ir_ops(model)
    assert torch.equal(embedding.inv_freq, frequencies)
    assert torch.equal(zoo.logits(model, long), before)


def test_a_module_that_rotates_nothing_is_not_reported() -> None:
    """Neither a projection nor an activation is an attention."""
    assert rotary.recognise(nn.Linear(2, 2), None) is None
