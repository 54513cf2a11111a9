"""The default model with its real weights: it knows the capital of France, on IR ops and off them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
import vllm_ir.ops
from vllm_ir.environment import Environment
from vllm_ir_host_transformers import use_ir_ops
from vllm_ir_host_transformers.cli.run import run
from vllm_ir_host_transformers.errors import ModelNotFetched
from vllm_ir_host_transformers.models import loading
from vllm_ir_host_transformers.models.default import default_model
from vllm_ir_host_transformers.models.steps import Silence

QUESTION = "What is the capital of France?"
LAYERS = 30


@pytest.fixture(scope="module")
def folder() -> str:
    """Give the folder of the model, fetched if it has to be."""
    try:
        return str(default_model(Environment.read().cache, Silence()))
    except ModelNotFetched as error:
        pytest.skip(str(error))


def answer(loaded: loading.Loaded) -> list[int]:
    """Return the tokens of a greedy answer."""
    inputs: Any = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    model: Any = loaded.model
    with torch.no_grad():
        ids: list[int] = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0].tolist()
    return ids


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_tokens_before_and_after(folder: str, dtype: str) -> None:
    """Paris, by the same tokens, before, on IR ops, and restored."""
    loaded = loading.load(folder, dtype=dtype, device="cpu")
    before = answer(loaded)
    with use_ir_ops(loaded.model) as replacement:
        assert answer(loaded) == before
    assert answer(loaded) == before
    assert "Paris" in loaded.tokenizer.decode(before)
    assert replacement.norms == 2 * LAYERS + 1


def test_a_pipeline_runs_the_same_providers(folder: str) -> None:
    """The chat pipeline and the model alone: the same tokens, by as many calls of each op by each provider."""

    def calls() -> dict[str, dict[str, int]]:
        """Return how often each provider has run each op."""
        return {name: dict(op.calls) for name, op in vllm_ir.report().ops.items() if op.calls}

    for op in (vllm_ir.ops.rms_norm, vllm_ir.ops.silu_and_mul):
        op.register_impl("mine")(op.declaration.native)
        op.set_default(["mine"])
    loaded = loading.load(folder, dtype="float32", device="cpu")
    with use_ir_ops(loaded.model):
        wanted = answer(loaded)
    by_model = calls()
    assert by_model["silu_and_mul"].keys() == by_model["rms_norm"].keys() == {"mine"}
    make: Any = transformers.pipeline
    pipe = make("text-generation", model=loaded.model, tokenizer=loaded.tokenizer)
    use_ir_ops(pipe)
    said = pipe([{"role": "user", "content": QUESTION}], max_new_tokens=24, do_sample=False)
    text = said[0]["generated_text"][-1]["content"]
    assert "Paris" in text
    whole: Any = loaded.tokenizer.decode(wanted, skip_special_tokens=True)
    assert whole.endswith(text)
    assert calls() == {op: {who: 2 * count for who, count in each.items()} for op, each in by_model.items()}


def test_the_command_answers_with_paris(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a model named it is this one; 31 of 61 norms are alone, or all 61."""
    assert folder
    for flags, norms in (([], LAYERS + 1), (["--no-fuse-residual"], 2 * LAYERS + 1)):
        assert run(["--json", "--device", "cpu", *flags]) == 0
        content = json.loads(capsys.readouterr().out)
        assert "Paris" in content["answer"]
        assert content["ops"]["rms_norm"]["calls_per_forward_pass"] == {"native": norms}
    assert content["notes"] == []
