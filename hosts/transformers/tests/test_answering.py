"""A greedy answer: the same tokens as `generate` gives, shown piece by piece, with what it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_host_transformers import answering
from vllm_ir_host_transformers.errors import EmptyPrompt
from vllm_ir_host_transformers.models import loading

if TYPE_CHECKING:
    from pathlib import Path


def drop(_: str) -> None:
    """Show nothing."""


@pytest.fixture
def loaded(tiny_folder: Path) -> loading.Loaded:
    """Give the tiny model with its tokenizer."""
    return loading.load(str(tiny_folder), dtype=None, device="cpu")


def test_the_answer_is_the_greedy_one_and_is_shown_whole(loaded: loading.Loaded) -> None:
    """The pieces make up the text, each token took one forward pass, and the times are in order."""
    pieces: list[str] = []
    said = answering.answer(loaded, "Hello", max_new_tokens=6, show=pieces.append)
    ids = loaded.tokenizer("<s>Hello", return_tensors="pt")["input_ids"]
    model: Any = loaded.model
    wanted = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
    assert list(said.token_ids) == wanted.tolist()
    assert "".join(pieces) == said.text
    assert (len(said.token_ids), said.forward_passes) == (6, 6)
    assert 0 < said.first_token_seconds <= said.seconds
    assert said.tokens_per_second == pytest.approx(6 / said.seconds)
    assert said.templated


def test_a_model_that_samples_by_default_answers_greedily(loaded: loading.Loaded) -> None:
    """A checkpoint's own taste for sampling is set aside, and left as it was."""
    settings: Any = loaded.model.generation_config
    settings.do_sample, settings.temperature = True, 5.0
    answers = {answering.answer(loaded, "Hello", max_new_tokens=6, show=drop).token_ids for _ in range(3)}
    assert len(answers) == 1
    assert (settings.do_sample, settings.temperature) == (True, 5.0)


def test_without_a_template_the_prompt_goes_in_as_it_is(loaded: loading.Loaded) -> None:
    """A base model has no chat template; that is said."""
    loaded.tokenizer.chat_template = None
    assert not answering.answer(loaded, "Hello", max_new_tokens=1, show=drop).templated


def test_an_empty_prompt_is_a_mistake(loaded: loading.Loaded) -> None:
    """Where not even the template brings a token, there is nothing to answer."""
    loaded.tokenizer.chat_template = None
    with pytest.raises(EmptyPrompt, match="holds no token"):
        answering.answer(loaded, "", max_new_tokens=1, show=drop)


def test_a_character_is_shown_once_all_its_bytes_are_there(loaded: loading.Loaded) -> None:
    """A token may end within a character, and half a character is not shown."""
    pieces: list[str] = []
    stream = answering.Stream(loaded.tokenizer, pieces.append)
    stream.put(torch.tensor([[1]]))
    ids: Any = loaded.tokenizer("a\u00e9\u4e2d")["input_ids"]
    assert len(ids) == 6
    for token in ids:
        stream.put(torch.tensor([token]))
    stream.end()
    assert pieces == ["a", "\u00e9", "\u4e2d"]


def test_what_was_held_back_is_shown_at_the_end(loaded: loading.Loaded) -> None:
    """An answer that stops within a character shows what there is."""
    pieces: list[str] = []
    stream = answering.Stream(loaded.tokenizer, pieces.append)
    stream.put(torch.tensor([[1]]))
    ids: Any = loaded.tokenizer("\u4e2d")["input_ids"]
    stream.put(torch.tensor(ids[:1]))
    assert pieces == []
    stream.end()
    assert pieces == ["\ufffd"]


def test_special_tokens_are_counted_and_not_shown(loaded: loading.Loaded) -> None:
    """The end token is a token, and no text."""
    pieces: list[str] = []
    stream = answering.Stream(loaded.tokenizer, pieces.append)
    stream.put(torch.tensor([[1]]))
    stream.put(torch.tensor([2]))
    stream.end()
    assert (stream.token_ids, pieces) == ([2], [])
