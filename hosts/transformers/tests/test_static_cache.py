"""Static caches, compiled: eager's bits, two graphs for all lengths, and the way that Transformers itself compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from transformers import CompileConfig
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir_host_transformers import use_ir_ops
from vllm_ir_host_transformers.compiling import compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]
Said = tuple[list[list[int]], torch.Tensor]
STATIC: dict[str, Any] = {"cache_implementation": "static"}


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    """Forget what Dynamo compiled, before and after."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def lowered(module: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
    """Lower a graph and run it as it is, which spares Inductor's time and is all that concerns this package."""
    lower_graph(module)
    return module


def speak(model: Any, prompt: int | Inputs, tokens: int = 5, **options: Any) -> Said:
    """Return the greedy continuation of a prompt of some length, or of prompts, and the logits behind it."""
    if isinstance(prompt, int):
        ids = torch.arange(2, 2 + prompt)[None]
        prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    options.update(max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True, output_logits=True)
    with torch.inference_mode():
        out = model.generate(**prompt, **options)
    return out.sequences.tolist(), torch.stack(out.logits)


def same(one: Said, other: Said) -> bool:
    """Tell whether two answers have the same tokens and the same bits behind them."""
    return one[0] == other[0] and torch.equal(one[1], other[1])


def config(**options: Any) -> CompileConfig:
    """Return how Transformers is told to compile by us; on a CPU it does so only when this flag is set."""
    # A mode and options exclude one another in torch.compile, and a CompileConfig has a mode unless it is taken away.
    found = CompileConfig(backend="vllm_ir", mode=None, options=options)  # type: ignore[arg-type]
    found._compile_all_devices = True  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_static_cache_has_the_bits_of_eager_s_and_two_graphs(dtype: torch.dtype, zoo: Zoo) -> None:
    """Of every length of prompt and cache; a growing cache beside it has graphs, and bits, of its own."""
    model = zoo.build("llama", dtype=dtype)
    ops = use_ir_ops(model).ops
    calls: list[tuple[int, int]] = [(7, 5), (5, 5), (17, 9)]
    wanted = [speak(model, *call, **STATIC) for call in calls]
    growing = speak(model, 7)
    # The cache of a model never shrinks, so that a compiled graph meets the same sizes again.
    model._previous_max_cache_length = -1
    with compiled(model, lower_to=lowered, fullgraph=True) as graphs:
        assert all(map(same, [speak(model, *call, **STATIC) for call in calls], wanted))
        assert [graph.stage for graph in graphs] == ["prompt", "token"]
        assert same(speak(model, 7), growing)
    assert [graph.stage for graph in graphs] == ["prompt", "token"] * 2
    for graph in graphs:
        assert graph.places == {op: {"native": count} for op, count in ops.items()}


@pytest.mark.parametrize("options", [STATIC, {}], ids=["static", "growing"])
def test_padded_prompts_have_the_bits_of_eager_s(options: dict[str, Any], batch: Inputs, zoo: Zoo) -> None:
    """Where a mask hides something, attention groups its queries in a graph as it does in eager."""
    model = zoo.build("llama")
    use_ir_ops(model)
    wanted = speak(model, batch, **options)
    with compiled(model, lower_to=lowered):
        assert same(speak(model, batch, **options), wanted)


def test_while_we_compile_transformers_does_not(llama: Any) -> None:
    """On an accelerator it would compile our compiled forward again; the method is the class's own afterwards."""
    use_ir_ops(llama)
    wanted = speak(llama, 7, **STATIC)
    with compiled(llama, lower_to=lowered) as graphs:
        assert same(speak(llama, 7, compile_config=config(lower_to=lowered), **STATIC), wanted)
    assert len(vllm_ir.report().graphs) == len(graphs) == 2
    assert "get_compiled_call" not in llama.__dict__


def test_transformers_compiles_by_us(zoo: Zoo) -> None:
    """Through its CompileConfig: the prompt stays eager, tokens have one graph, with the provider of the process."""
    vllm_ir.ops.silu_and_mul.register_impl("mine")(vllm_ir.ops.silu_and_mul.declaration.native)
    vllm_ir.ops.silu_and_mul.set_default(["mine"])
    model = zoo.build("llama", dtype=torch.bfloat16)
    ops = use_ir_ops(model).ops
    wanted = [speak(model, prompt, **STATIC)[0] for prompt in (7, 5)]
    how = config(exact=True, lower_to=lowered)
    assert [speak(model, prompt, compile_config=how, **STATIC)[0] for prompt in (7, 5)] == wanted
    (graph,) = vllm_ir.report().graphs
    assert {op: sum(each.values()) for op, each in graph.counts.items()} == ops
    assert graph.counts["silu_and_mul"] == {"mine": ops["silu_and_mul"]}


def test_inductor_keeps_the_bits_of_a_static_cache(zoo: Zoo) -> None:
    """With the real compiler, in bfloat16, and with no graph but the two."""
    model = zoo.build("llama", dtype=torch.bfloat16)
    use_ir_ops(model)
    wanted = [speak(model, prompt, 12, **STATIC) for prompt in (7, 5)]
    with compiled(model, fullgraph=True) as graphs:
        assert all(map(same, [speak(model, prompt, 12, **STATIC) for prompt in (7, 5)], wanted))
    assert [graph.stage for graph in graphs] == ["prompt", "token"]
