"""Tiny random models of every family, and a process state of its own for each test, with counting on."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
import vllm_ir.ops
from vllm_ir.isolation import isolated
from vllm_ir.plugins import load_providers
from vllm_ir.plugins.distributions import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn
    from vllm_ir.runtime import Runtime

LAYERS = 2
ELSEWHERE = [each.name for each in scan() if each.name not in {"vllm-ir", "vllm-ir-first-provider"} and each.providers]
"""Distributions with providers that happen to be installed here."""

BASE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: how a tiny one is made and how often each op runs in a forward pass of it, in float32.

    Attributes:
        config: the name of its configuration.
        model: the name of its class with a head.
        norms: norms per forward pass, alone or fused.
        fused: those of them that an add is fused into.
        gate: the op of its gated activation.
        more: what its configuration has beyond the common part.
    """

    config: str
    model: str
    norms: int
    fused: int = LAYERS
    gate: str | None = "silu_and_mul"
    more: dict[str, Any] = field(default_factory=dict)

    def build(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
        """Return a random model in eval mode whose norms have weights that matter."""
        torch.manual_seed(seed)
        config = getattr(transformers, self.config)(**{**BASE, **self.more})
        model = getattr(transformers, self.model)(config)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.data += torch.randn_like(parameter) * 0.3
        return model.to(dtype).eval()


WINDOW: dict[str, Any] = {"sliding_window": 8}
SOFT: dict[str, Any] = {**WINDOW, "query_pre_attn_scalar": 16}
MIXED: dict[str, Any] = {**SOFT, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM", 2 * LAYERS + 1),
    "mistral": Family("MistralConfig", "MistralForCausalLM", 2 * LAYERS + 1, more=WINDOW),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM", 2 * LAYERS + 1),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM", 4 * LAYERS + 1),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", 4 * LAYERS + 1, gate="gelu_and_mul", more=SOFT),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", 6 * LAYERS + 1, gate="gelu_and_mul", more=MIXED),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", 2 * LAYERS + 1),
    "smollm3": Family("SmolLM3Config", "SmolLM3ForCausalLM", 2 * LAYERS + 1),
    "olmo2": Family("Olmo2Config", "Olmo2ForCausalLM", 4 * LAYERS + 1, fused=0),
    "mixtral": Family("MixtralConfig", "MixtralForCausalLM", 2 * LAYERS + 1, gate=None),
}


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Compute on one thread: tiny tensors lose more by being shared out than they win."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runtime]:
    """Give each test a fresh process state that counts calls, in a folder without settings."""
    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_IR_COUNTERS", "1")
    monkeypatch.chdir(tmp_path)
    places = {name: os.environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in os.environ}
    # Another provider's defaults would take the calls that these tests count on native.
    variables = {"VLLM_IR_COUNTERS": "1", "VLLM_IR_PROVIDERS_DISABLED": ",".join(ELSEWHERE), **places}
    with isolated(variables, loader=load_providers) as fresh:
        yield fresh


@pytest.fixture
def llama() -> Any:
    """Give a tiny random Llama in float32."""
    return FAMILIES["llama"].build()


@pytest.fixture
def counts() -> Callable[[], dict[str, int]]:
    """Return a function that gives the calls of each op since it was last asked."""
    seen: dict[str, int] = {}

    def read() -> dict[str, int]:
        """Return the calls since the last time, ops without any left out."""
        now = {name: sum(op.calls.values()) for name, op in vllm_ir.report().ops.items()}
        new = {name: count - seen.get(name, 0) for name, count in now.items()}
        seen.update(now)
        return {name: count for name, count in new.items() if count}

    read()
    return read


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Give two prompts of different length, the shorter one padded on the left."""
    ids = torch.randint(2, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.fixture
def inplace_writer() -> list[tuple[int, ...]]:
    """Put a provider first for the fused op that really writes to what it is given; return where it wrote."""
    op = vllm_ir.ops.fused_add_rms_norm
    native = op.declaration.native
    written: list[tuple[int, ...]] = []

    def writer(
        x: torch.Tensor,
        x_residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        variance_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write native's results over the arguments."""
        out, total = native(x, x_residual, weight, epsilon, variance_size)
        written.append((x.data_ptr(), x_residual.data_ptr()))
        return x.copy_(out), x_residual.copy_(total)

    op.register_impl("writer", inplace=True)(writer)
    op.set_default(["writer"])
    return written


class Zoo:
    """The families, and what tests do with a model again and again."""

    families = FAMILIES
    base = BASE
    layers = LAYERS

    def build(self, name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
        """Return a tiny random model of a family."""
        return FAMILIES[name].build(dtype, seed)

    def logits(self, model: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the logits, computed without gradients."""
        with torch.no_grad():
            result: torch.Tensor = model(**inputs).logits
        return result

    def greedy(self, model: Any, inputs: dict[str, torch.Tensor], tokens: int = 8) -> list[list[int]]:
        """Return the prompts with their greedy continuations."""
        ids: list[list[int]] = model.generate(**inputs, max_new_tokens=tokens, do_sample=False).tolist()
        return ids


@pytest.fixture(scope="session")
def zoo() -> Zoo:
    """Give the families; test files cannot import each other or this file."""
    return Zoo()


TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny random Llama with a tokenizer of bytes and a chat template, and give its folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[], fuse_unk=False))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    make: Any = transformers.PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=raw, chat_template=TEMPLATE, **special)
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**{**BASE, "vocab_size": len(vocabulary)})
    folder = tmp_path_factory.mktemp("models") / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
