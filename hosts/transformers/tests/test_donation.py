"""Donation: with a provider that writes over what it gets, nobody who can still see a hidden state sees another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from vllm_ir_host_transformers import donation, use_ir_ops

if TYPE_CHECKING:
    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]
NAMES = ("llama", "qwen3", "gemma2", "gemma3", "phi3")


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch, inplace_writer: list[Any]) -> list[bool]:
    """Give the answers of `allowed`, in order, while a provider that really writes in place runs the fused op."""
    said: list[bool] = []
    own = donation.allowed

    def allowed(layer: nn.Module, residual: torch.Tensor) -> bool:
        """Answer as ever and keep the answer."""
        said.append(own(layer, residual))
        return said[-1]

    monkeypatch.setattr(donation, "allowed", allowed)
    assert inplace_writer == []
    return said


@pytest.mark.parametrize("name", NAMES)
def test_in_a_plain_pass_every_layer_but_the_first_donates(
    name: str, batch: Inputs, zoo: Zoo, verdicts: list[bool], inplace_writer: list[Any]
) -> None:
    """The first layer's residual is the embedding, which is not ours; every other one is what a layer made."""
    model = zoo.build(name)
    wanted, said = zoo.logits(model, batch), zoo.greedy(model, batch)
    use_ir_ops(model)
    assert torch.equal(zoo.logits(model, batch), wanted)
    assert verdicts == [False] + [True] * (zoo.layers - 1)
    assert len(inplace_writer) == zoo.layers
    assert zoo.greedy(model, batch) == said


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_asked_for_are_those_of_the_model(
    name: str, batch: Inputs, zoo: Zoo, verdicts: list[bool]
) -> None:
    """`output_hidden_states` keeps every layer's output, so nothing is donated and none is overwritten."""
    model = zoo.build(name)
    with torch.no_grad():
        before = model(**batch, output_hidden_states=True).hidden_states
        use_ir_ops(model)
        after = model(**batch, output_hidden_states=True).hidden_states
    assert len(after) == zoo.layers + 1
    assert all(map(torch.equal, after, before))
    assert not any(verdicts)


def test_embeddings_that_the_user_passes_stay(llama: Any, batch: Inputs, verdicts: list[bool]) -> None:
    """`inputs_embeds` is the first residual and belongs to the caller."""
    with torch.no_grad():
        embeddings = llama.get_input_embeddings()(batch["input_ids"])
        kept = embeddings.clone()
        use_ir_ops(llama)
        llama(inputs_embeds=embeddings, attention_mask=batch["attention_mask"])
    assert torch.equal(embeddings, kept)
    assert verdicts[0] is False


@pytest.mark.parametrize(
    "where", ["model.layers.0", "model.layers.1.self_attn.o_proj", "model.layers.1.input_layernorm"]
)
def test_what_a_hook_keeps_is_not_overwritten(where: str, batch: Inputs, zoo: Zoo, verdicts: list[bool]) -> None:
    """A hook on the layer before, inside the attention or on the first norm holds what would be donated."""
    model = zoo.build("llama")
    kept: list[torch.Tensor] = []

    def keep(_: nn.Module, inputs: tuple[torch.Tensor, ...], result: Any) -> None:
        """Keep what a module got and gave."""
        kept.extend([*inputs, result if isinstance(result, torch.Tensor) else result[0]])

    model.get_submodule(where).register_forward_hook(keep)
    zoo.logits(model, batch)
    before = list(kept)
    kept.clear()
    use_ir_ops(model)
    zoo.logits(model, batch)
    assert all(map(torch.equal, kept, before))
    assert not any(verdicts)


@pytest.mark.parametrize("where", ["model.layers.0", "model.layers.1", "model.layers.1.self_attn"])
def test_what_a_wrapped_forward_keeps_is_not_overwritten(
    where: str, batch: Inputs, zoo: Zoo, verdicts: list[bool]
) -> None:
    """Some keep hidden states by standing in front of a forward, after the model was put on ops."""
    model = zoo.build("llama")
    use_ir_ops(model)
    module, kept = model.get_submodule(where), list[torch.Tensor]()
    own = module.forward

    def keeping(*args: Any, **kwargs: Any) -> Any:
        """Keep what the forward gets and gives."""
        result = own(*args, **kwargs)
        kept.extend(list(args))
        kept.append(result if isinstance(result, torch.Tensor) else result[0])
        return result

    module.forward = keeping
    zoo.logits(model, batch)
    seen = list(kept)
    kept.clear()
    other = zoo.build("llama")
    own = other.get_submodule(where).forward
    other.get_submodule(where).forward = keeping
    zoo.logits(other, batch)
    assert all(map(torch.equal, seen, kept))
    assert not any(verdicts)


def test_a_hook_on_a_fused_norm_still_fires(llama: Any, batch: Inputs, zoo: Zoo, verdicts: list[bool]) -> None:
    """A norm that someone waits for is called, with the sum, instead of being fused away."""
    seen: list[torch.Tensor] = []
    norm = llama.model.layers[1].post_attention_layernorm
    norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    wanted = zoo.logits(llama, batch)
    use_ir_ops(llama)
    assert torch.equal(zoo.logits(llama, batch), wanted)
    assert len(seen) == 2
    assert torch.equal(*seen)
    assert len(verdicts) == zoo.layers - 1


def test_a_hook_for_all_modules_stops_fusing(llama: Any, batch: Inputs, zoo: Zoo, verdicts: list[bool]) -> None:
    """A global hook sees every norm called, as before."""
    use_ir_ops(llama)
    called: list[str] = []
    handle = register_module_forward_hook(lambda module, *_: called.append(type(module).__name__))
    try:
        zoo.logits(llama, batch)
    finally:
        handle.remove()
    assert called.count("LlamaRMSNorm") == 2 * zoo.layers + 1
    assert verdicts == []


def test_layers_called_by_hand_donate_nothing(llama: Any, verdicts: list[bool]) -> None:
    """Outside the stack's own forward nobody knows who keeps the hidden states."""
    x = torch.randn(1, 4, 64)
    angles = llama.model.rotary_emb(x, torch.arange(4).unsqueeze(0))

    def walk() -> list[torch.Tensor]:
        """Call the layers in a loop that keeps every state."""
        states = [x]
        with torch.no_grad():
            for layer in llama.model.layers:
                states.append(layer(states[-1], position_embeddings=angles))
        return states

    before = walk()
    use_ir_ops(llama)
    assert all(map(torch.equal, walk(), before))
    assert not any(verdicts)


@pytest.mark.parametrize("training", [False, True])
def test_with_gradients_nothing_is_donated(llama: Any, batch: Inputs, verdicts: list[bool], training: bool) -> None:
    """A backward pass needs what was there."""
    use_ir_ops(llama)
    llama.train(training)
    llama(**batch, labels=batch["input_ids"]).loss.backward()
    assert verdicts
    assert not any(verdicts)


def test_in_training_mode_nothing_is_donated_even_without_gradients(
    llama: Any, batch: Inputs, zoo: Zoo, verdicts: list[bool]
) -> None:
    """Reentrant checkpointing runs its first pass without gradients and keeps the inputs of every layer."""
    use_ir_ops(llama)
    llama.train()
    zoo.logits(llama, batch)
    assert not any(verdicts)


def test_compiled_hidden_states_are_those_of_the_model(llama: Any, batch: Inputs, inplace_writer: list[Any]) -> None:
    """A compiler gets the functional overload, whatever happens to the tensors around it."""
    with torch.no_grad():
        before = llama(**batch, output_hidden_states=True, use_cache=False).hidden_states
        use_ir_ops(llama)
        compiled: Any = torch.compile(llama, backend="eager")
        after = compiled(**batch, output_hidden_states=True, use_cache=False).hidden_states
    for one, other in zip(after, before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert inplace_writer


@pytest.mark.parametrize("name", NAMES)
def test_the_loops_of_the_families_forget(name: str, zoo: Zoo) -> None:
    """Each family's stack hands one hidden state on and keeps none, so its layers may donate."""
    assert donation.forgets(zoo.build(name).model, "layers") is True


class Keeper(nn.Module):
    """A stack whose loop collects what its layers return, as models used to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity()])

    def forward(self, hidden_states: torch.Tensor) -> list[torch.Tensor]:
        """Return every state."""
        states = []
        for layer in self.layers:
            hidden_states = layer(hidden_states)
            states.append(hidden_states)
        return states


class Twice(nn.Module):
    """A stack that gives its layers the same tensor in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity()])

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the last state."""
        for layer in self.layers:
            hidden_states = layer(hidden_states, again=hidden_states)
        return hidden_states


class Other(nn.Module):
    """A stack that binds the result to another name, so that the old state lives on."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity()])

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the last state."""
        result = hidden_states
        for layer in self.layers:
            result = layer(hidden_states)
        return result


@pytest.mark.parametrize("stack", [Keeper, Twice, Other])
def test_a_loop_that_may_keep_a_state_is_seen(stack: type[nn.Module]) -> None:
    """What is not plainly `h = layer(h, ...)` and nothing else gets no donation, with the reason."""
    verdict = donation.forgets(stack(), "layers")
    assert not verdict
    assert f"the loop of {stack.__name__} may keep hidden states" in str(verdict)
