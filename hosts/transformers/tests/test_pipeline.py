"""What a newcomer tries: `pipeline`, several prompts at once, sampling, beams and streams, on ops and compiled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
import vllm_ir
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer, pipeline, set_seed
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir_host_transformers import restore, use_ir_ops
from vllm_ir_host_transformers.compiling import compiled
from vllm_ir_host_transformers.errors import NotAModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hosts.transformers.tests.conftest import Zoo

PROMPT = "Hello"
GREEDY: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    """Forget what Dynamo compiled, before and after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def pipe(tiny_folder: Path) -> Any:
    """Give a pipeline on the tiny model."""
    make: Any = pipeline
    return make("text-generation", model=str(tiny_folder), device="cpu")


@pytest.fixture
def mine() -> str:
    """Put a provider first for two ops, and give its name."""
    for op in (vllm_ir.ops.rms_norm, vllm_ir.ops.silu_and_mul):
        op.register_impl("mine")(op.declaration.native)
        op.set_default(["mine"])
    return "mine"


def lowered(module: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
    """Lower a graph and run it as it is, which spares Inductor's time and is all that concerns this package."""
    lower_graph(module)
    return module


def providers() -> dict[str, dict[str, int]]:
    """Return how often each provider has run each op."""
    return {name: dict(op.calls) for name, op in vllm_ir.report().ops.items() if op.calls}


def test_a_pipeline_and_a_model_run_the_same_providers(pipe: Any, tiny_folder: Path, mine: str) -> None:
    """The same text, by as many calls of each op by each provider, whether a user holds the model or a pipeline."""
    before = pipe(PROMPT, **GREEDY)
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    use_ir_ops(model)
    ids = model.generate(**tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False), **GREEDY)
    by_model = providers()
    assert by_model["silu_and_mul"].keys() == by_model["rms_norm"].keys() == {mine}
    use_ir_ops(pipe)
    assert pipe(PROMPT, **GREEDY) == before
    assert before[0]["generated_text"] == tokenizer.decode(ids[0], skip_special_tokens=True)
    assert providers() == {op: {who: 2 * count for who, count in calls.items()} for op, calls in by_model.items()}


def test_a_pipeline_stands_for_its_model(pipe: Any, counts: Callable[[], dict[str, int]]) -> None:
    """Replaced and restored by either."""
    assert use_ir_ops(pipe) == use_ir_ops(pipe.model)
    restore(pipe)
    counts()
    pipe(PROMPT, **GREEDY)
    assert counts() == {}


def test_a_pipeline_compiles(pipe: Any, mine: str) -> None:
    """Two graphs, in which the providers stand that eager calls; the text is eager's."""
    options = {**GREEDY, "cache_implementation": "static"}
    places = use_ir_ops(pipe).ops
    before = pipe(PROMPT, **options)
    with vllm_ir.IrOpPriorityConfig.with_default([mine]).set_priority(), compiled(pipe, lower_to=lowered) as graphs:
        assert pipe(PROMPT, **options) == before
    assert [graph.stage for graph in graphs] == ["prompt", "token"]
    for graph in graphs:
        assert graph.places["silu_and_mul"] == {mine: places["silu_and_mul"]}
        assert graph.places["rotary_embedding"] == {"native": places["rotary_embedding"]}


def test_several_prompts_at_once_say_the_same(pipe: Any) -> None:
    """Prompts of different length in one batch, padded on the left."""
    prompts = [PROMPT, "A longer prompt", "!"]
    before = pipe(prompts, batch_size=3, **GREEDY)
    use_ir_ops(pipe)
    assert pipe(prompts, batch_size=3, **GREEDY) == before


@pytest.mark.parametrize(
    "options",
    [{"do_sample": True, "top_k": 20}, {"do_sample": True, "num_return_sequences": 3}, {"num_beams": 3}],
    ids=["sampled", "three samples", "beams"],
)
def test_seeded_samples_and_beams_are_the_same(options: dict[str, Any], zoo: Zoo) -> None:
    """As before, from the same seed; compiled too, where beams put the cache into another order."""
    model = zoo.build("llama")
    ids = torch.arange(2, 9)[None]

    def speak() -> list[list[int]]:
        """Return what the model says from the seed."""
        set_seed(3)
        out: list[list[int]] = model.generate(ids, max_new_tokens=6, **options).tolist()
        return out

    before = speak()
    use_ir_ops(model)
    assert speak() == before
    if "num_beams" in options:
        with compiled(model, lower_to=lowered):
            assert speak() == before


def test_a_stream_from_another_thread_has_the_same_text(pipe: Any) -> None:
    """As a chat window reads it: generation in a thread, pieces in this one."""
    wanted = pipe(PROMPT, return_full_text=False, **GREEDY)[0]["generated_text"]
    use_ir_ops(pipe)
    inputs = pipe.tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    make: Any = TextIteratorStreamer
    stream = make(pipe.tokenizer, skip_prompt=True, skip_special_tokens=True, timeout=60)
    thread = threading.Thread(target=pipe.model.generate, kwargs={**inputs, **GREEDY, "streamer": stream})
    thread.start()
    assert "".join(stream) == wanted
    thread.join()


@pytest.mark.parametrize("given", [{}, "path/to/model", transformers.LlamaConfig()], ids=["dict", "text", "config"])
def test_what_is_no_model_is_told(given: Any) -> None:
    """By every door, before anything happens."""
    with pytest.raises(NotAModel, match=f"a {type(given).__name__} is no model"):
        use_ir_ops(given)
    with pytest.raises(NotAModel, match="or a pipeline of Transformers"):
        restore(given)
    with pytest.raises(NotAModel), compiled(given):
        pass
