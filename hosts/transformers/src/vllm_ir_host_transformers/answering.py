"""A greedy answer to one prompt, given piece by piece, and what it took: tokens, seconds and forward passes."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vllm_ir_host_transformers.errors import EmptyPrompt
from vllm_ir_host_transformers.models.loading import quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from vllm_ir_host_transformers.models.loading import Loaded


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said and what it took.

    Attributes:
        text: the answer without special tokens.
        token_ids: the tokens generated, the end token among them.
        seconds: from the prompt to the last token.
        first_token_seconds: from the prompt to the first token.
        forward_passes: how often the model ran.
        templated: whether the prompt went through the model's chat template.
    """

    text: str
    token_ids: tuple[int, ...]
    seconds: float
    first_token_seconds: float
    forward_passes: int
    templated: bool

    @property
    def tokens_per_second(self) -> float:
        """Tokens generated per second, the prompt's own time included."""
        return len(self.token_ids) / self.seconds if self.seconds else 0.0


class Stream:
    """Takes tokens from `generate` and gives their text on as soon as it is certain."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._show = show
        self._shown = ""
        self._prompt_seen = False
        self.token_ids: list[int] = []
        self.first: float | None = None

    def put(self, value: Tensor) -> None:
        """Take the prompt, which comes first and is not shown, or the next token."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        if self.first is None:
            self.first = time.perf_counter()
        self.token_ids += value.flatten().tolist()
        text = self.text
        # A token may end in the middle of a character; the rest comes with the next one.
        if not text.endswith("\ufffd"):
            self._give(text)

    def end(self) -> None:
        """Show what was held back."""
        self._give(self.text)

    @property
    def text(self) -> str:
        """The text so far."""
        return str(self._tokenizer.decode(self.token_ids, skip_special_tokens=True))

    def _give(self, text: str) -> None:
        """Show what of a text has not been shown."""
        if text.startswith(self._shown) and text != self._shown:
            self._show(text[len(self._shown) :])
            self._shown = text


def answer(
    loaded: Loaded, prompt: str, *, max_new_tokens: int, show: Callable[[str], None], cache: str = "dynamic"
) -> Answer:
    """Let a model answer a prompt greedily.

    Args:
        loaded: the model.
        prompt: the question; the model's chat template goes around it where there is one.
        max_new_tokens: where to stop at the latest.
        show: called with each piece of the answer.
        cache: "dynamic" grows with every token, "static" is as large as it can become from the start.

    Raises:
        EmptyPrompt: the prompt holds no token.
    """
    tokenizer, model = loaded.tokenizer, loaded.model
    templated = bool(tokenizer.chat_template)
    inputs: Any = (
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        if templated
        else tokenizer(prompt, return_tensors="pt")
    )
    if not inputs["input_ids"].numel():
        raise EmptyPrompt(prompt=prompt)
    inputs = {name: inputs[name].to(loaded.device) for name in ("input_ids", "attention_mask")}
    stream = Stream(tokenizer, show)
    passes = 0

    def count(*_: object) -> None:
        """Count one forward pass."""
        nonlocal passes
        passes += 1

    settings: Any = copy.deepcopy(model.generation_config)
    settings.update(do_sample=False, num_beams=1, max_new_tokens=max_new_tokens, max_length=None)
    settings.update(cache_implementation=None if cache == "dynamic" else cache)
    settings.update(temperature=None, top_p=None, top_k=None)
    if settings.pad_token_id is None:
        settings.pad_token_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    handle = model.register_forward_pre_hook(count)
    start = time.perf_counter()
    try:
        with quiet(offline=False), torch.inference_mode():
            generate: Any = model.generate
            generate(**inputs, generation_config=settings, streamer=stream)
    finally:
        handle.remove()
    end = time.perf_counter()
    return Answer(
        text=stream.text,
        token_ids=tuple(stream.token_ids),
        seconds=end - start,
        first_token_seconds=(stream.first or end) - start,
        forward_passes=passes,
        templated=templated,
    )
