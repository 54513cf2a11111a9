"""Rotations of many families, each said in the op: recognised by their bits, or left to the model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_host_transformers import rotations
from vllm_ir_host_transformers.rotations import Form

if TYPE_CHECKING:
    from collections.abc import Callable

INTERLEAVED = "apply_rotary_pos_emb_interleave"
WRITTEN = {
    ("llama", "apply_rotary_pos_emb"): Form("halves"),
    ("gpt_neox", "apply_rotary_pos_emb"): Form("halves", partial=True),
    ("glm", "apply_rotary_pos_emb"): Form("halves", neox=False, partial=True),
    ("helium", "apply_rotary_pos_emb"): Form("halves", neox=False),
    ("ernie4_5", "apply_rotary_pos_emb"): Form("halves", neox=False, wide=True),
    ("cohere", "apply_rotary_pos_emb"): Form("pairs", neox=False, wide=True),
    ("gpt_oss", "apply_rotary_pos_emb"): Form("once"),
    ("deepseek_v3", INTERLEAVED): Form("halves", gathers=True),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def written(family: str, name: str) -> Callable[..., Any]:
    """Return a rotation out of a modelling file."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    function: Callable[..., Any] = getattr(module, name)
    return function


def operands(form: Form, dtype: torch.dtype, more: int = 0) -> list[torch.Tensor]:
    """Return queries, keys, cosines and sines of two prompts of five tokens."""
    torch.manual_seed(0)
    q, k = (torch.randn(2, 5, heads, 8 + more).to(dtype).transpose(1, 2) for heads in (4, 2))
    angle = rotations._laid_out(torch.randn(2, 5, 4), form)
    return [q, k, angle.cos().to(dtype), angle.sin().to(dtype)]


@pytest.mark.parametrize("key", WRITTEN, ids="-".join)
def test_a_family_s_rotation_is_known_by_its_bits(key: tuple[str, str]) -> None:
    """Which pairs turn, how the cosines lie, what is rounded, and whether a rest is handed through."""
    assert rotations.form_of(written(*key)) == WRITTEN[key]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("key", WRITTEN, ids="-".join)
def test_it_has_the_bits_of_the_family_s_own(
    key: tuple[str, str], dtype: torch.dtype, counts: Callable[[], dict[str, int]]
) -> None:
    """By one call of the op; where a rest is handed through, also for heads that are wider than the cosines."""
    form, function = WRITTEN[key], written(*key)
    for more in (0, 4) if form.partial else (0,):
        values = operands(form, dtype, more)
        wanted = function(*values)
        got = rotations.stand_in(function, form)(*values)
        assert all(map(torch.equal, got, wanted))
        assert [part.dtype for part in got] == [part.dtype for part in wanted]
        assert counts() == {"rotary_embedding": 1}


def test_cosines_may_stay_in_float32_where_the_rotation_does(counts: Callable[[], dict[str, int]]) -> None:
    """ERNIE 4.5 never rounds its cosines; a rotation that multiplies in bfloat16 would promote."""
    function = written("ernie4_5", "apply_rotary_pos_emb")
    form = Form("halves", neox=False, wide=True)
    q, k, cos, sin = operands(form, torch.bfloat16)
    wanted = function(q, k, cos.float(), sin.float())
    got = rotations.stand_in(function, form)(q, k, cos.float(), sin.float())
    assert all(map(torch.equal, got, wanted))
    assert counts() == {"rotary_embedding": 1}
    assert not Form("halves").takes(torch.bfloat16, torch.float32)


def test_heads_wider_than_the_cosines_go_to_the_model_s_own(counts: Callable[[], dict[str, int]]) -> None:
    """Where a model has no answer to them, neither has what stands in for it."""
    form = Form("halves")
    with pytest.raises(RuntimeError, match="must match the size"):
        rotations.stand_in(written("llama", "apply_rotary_pos_emb"), form)(*operands(form, torch.float32, more=4))
    assert counts() == {}


def backwards(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Turn the other way."""
    return written("llama", "apply_rotary_pos_emb")(q, k, cos, -sin)


def promoted(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Turn in float32 and leave the result there."""
    return written("llama", "apply_rotary_pos_emb")(q.float(), k.float(), cos.float(), sin.float())


def alone(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn one tensor, as Gemma 4 does."""
    turned: torch.Tensor = written("llama", "apply_rotary_pos_emb")(q, q, cos, sin)[0]
    return turned


def one_of_two(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """Return only the queries."""
    return written("llama", "apply_rotary_pos_emb")(q, k, cos, sin)[:1]


@pytest.mark.parametrize("function", [backwards, promoted, alone, one_of_two])
def test_what_turns_otherwise_has_no_form(function: Callable[..., Any]) -> None:
    """Another direction, another dtype of the result, other parameters, another number of results."""
    assert rotations.form_of(function) is None
