"""A compiled model: eager's tokens, two graphs for all prompts and tokens, gradients of native, and what it reports."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir_host_transformers import measuring, use_ir_ops
from vllm_ir_host_transformers.compiling import Compilation, as_json, compiled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]


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


def speak(model: Any, prompt: int, tokens: int = 5) -> list[int]:
    """Return the greedy continuation of a prompt of some length."""
    ids = torch.arange(2, 2 + prompt)[None]
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    answer: list[int] = out[0].tolist()
    return answer


@pytest.mark.parametrize(
    ("name", "dtype"), [("llama", torch.float32), ("llama", torch.bfloat16), ("qwen3", torch.float32)], ids=str
)
def test_one_graph_for_prompts_and_one_for_tokens(name: str, dtype: torch.dtype, zoo: Zoo) -> None:
    """Without a break in the graph, with eager's tokens, whatever the length of the prompt."""
    model = zoo.build(name, dtype=dtype)
    ops = use_ir_ops(model).ops
    wanted = [speak(model, 7), speak(model, 5)]
    with compiled(model, lower_to=lowered, fullgraph=True) as graphs:
        assert [speak(model, 7), speak(model, 5)] == wanted
    assert [graph.stage for graph in graphs] == ["prompt", "token"]
    for graph in graphs:
        assert graph.places == {op: {"native": count} for op, count in ops.items()}


def test_windows_take_more_graphs_and_break_none(zoo: Zoo) -> None:
    """A sliding window makes a graph of its own of some lengths; tokens are eager's, and no op is missing."""
    model = zoo.build("gemma3")
    ops = use_ir_ops(model).ops
    wanted = speak(model, 4)
    with compiled(model, lower_to=lowered, fullgraph=True) as graphs:
        assert speak(model, 4) == wanted
    assert {graph.stage for graph in graphs} == {"prompt", "token"}
    for graph in graphs:
        assert graph.places == {op: {"native": count} for op, count in ops.items()}


def test_the_forward_comes_back_and_keeps_its_parameters_meanwhile(llama: Any) -> None:
    """`generate` reads the names of the parameters, also when something else had been put on the instance."""
    signature = inspect.signature(llama.forward)
    with compiled(llama, lower_to=lowered):
        assert inspect.signature(llama.forward) == signature
    assert "forward" not in llama.__dict__
    llama.forward = other = llama.forward
    with pytest.raises(ZeroDivisionError), compiled(llama, lower_to=lowered):
        raise ZeroDivisionError
    assert llama.__dict__["forward"] is other


def test_a_mask_is_left_out_only_where_it_hides_nothing(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager attention takes a kernel without a mask then, and so must a graph; padding stays hidden."""
    seen: list[Any] = []

    def look(forward: Any, **_: Any) -> Any:
        """Keep the masks instead of compiling."""

        def run(*args: Any, **kwargs: Any) -> Any:
            """Keep the mask and run the model."""
            seen.append(kwargs["attention_mask"])
            return forward(*args, **kwargs)

        return run

    monkeypatch.setattr(vllm_ir, "compile", look)
    ids = torch.arange(2, 12).view(2, 5)
    padded = torch.ones_like(ids)
    padded[0, :2] = 0
    with compiled(llama), torch.no_grad():
        for mask in (torch.ones_like(ids), padded):
            llama(input_ids=ids, attention_mask=mask)
    assert seen == [None, padded]


def test_a_provider_runs_in_the_graphs(llama: Any) -> None:
    """Selected in every place of its op, in the order that it was put into; what ran first keeps its graph."""
    vllm_ir.ops.silu_and_mul.register_impl("mine")(vllm_ir.ops.silu_and_mul.declaration.native)
    use_ir_ops(llama)
    wanted = speak(llama, 7)
    with vllm_ir.IrOpPriorityConfig(silu_and_mul=["mine"]).set_priority(), compiled(llama, lower_to=lowered) as graphs:
        assert speak(llama, 7) == wanted
    content = as_json(Compilation(tuple(graphs), 1.5))
    assert [set(graph["selected"]["silu_and_mul"].values()) for graph in content["graphs"]] == [{"mine"}, {"mine"}]
    assert [graph["stage"] for graph in content["graphs"]] == ["prompt", "token"]
    assert content["priority"]["silu_and_mul"][-1]["provider"] == "native"
    assert content["seconds"] == 1.5


def test_a_named_provider_that_is_selected_nowhere_is_told(llama: Any) -> None:
    """With its refusals, and where the norms are that `rms_norm` does not run."""

    def refuse(x: torch.Tensor) -> vllm_ir.Unsupported:  # noqa: ARG001 - a predicate has the op's parameters
        """Refuse everything."""
        return vllm_ir.Unsupported("never wants to")

    op = vllm_ir.ops.silu_and_mul
    op.register_impl("picky", supports_args=refuse)(op.declaration.native)
    replacement = use_ir_ops(llama)
    meter = measuring.Meter()
    with vllm_ir.IrOpPriorityConfig(silu_and_mul=["picky"]).set_priority():
        with compiled(llama, lower_to=lowered) as graphs:
            speak(llama, 7)
        found = Compilation(tuple(graphs), 0.0)
        assert found.unmet(meter.read(replacement, 5)) == (
            "picky was named for silu_and_mul and was selected in none of its 4 places",
        )
    assert {refusal[:3] for graph in graphs for refusal in graph.record.refusals} == {
        ("silu_and_mul", "picky", "never wants to")
    }
    assert "rms_norm takes 3 of 5 norms" in str(found.norm_sentence())


def test_a_model_without_ops_has_nothing_to_say(llama: Any) -> None:
    """It is compiled all the same, and no sentence is made of nothing."""
    with compiled(llama, lower_to=lowered) as graphs:
        speak(llama, 7)
    found = Compilation(tuple(graphs), 0.0)
    assert found.norm_sentence() is None
    assert Compilation((), 0.0).norm_sentence() is None
    assert as_json(found)["priority"] == {}


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_gradients_are_those_of_native(name: str, batch: Inputs, zoo: Zoo) -> None:
    """Every parameter of a model that trains compiled, on IR ops, in one graph, gets the gradient it gets without."""
    model = zoo.build(name).train()

    def gradients(forward: Any) -> dict[str, torch.Tensor]:
        """Return the gradients of one step."""
        model.zero_grad()
        forward(**batch, labels=batch["input_ids"], use_cache=False).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    before = gradients(model)
    use_ir_ops(model)
    after = gradients(vllm_ir.compile(model, lower_to=lowered, fullgraph=True))
    assert set(after) == set(before)
    for parameter, gradient in after.items():
        torch.testing.assert_close(gradient, before[parameter], rtol=1e-4, atol=1e-6)
    assert {graph.name.endswith(" backward") for graph in vllm_ir.report().graphs} == {False, True}


def test_inductors_tokens_are_eagers(zoo: Zoo) -> None:
    """With the real compiler, in bfloat16, and with no graph but the two."""
    model = zoo.build("llama", dtype=torch.bfloat16)
    use_ir_ops(model)
    wanted = [speak(model, 7, 12), speak(model, 5, 12)]
    with compiled(model, fullgraph=True) as graphs:
        assert [speak(model, 7, 12), speak(model, 5, 12)] == wanted
    assert [graph.stage for graph in graphs] == ["prompt", "token"]
