"""`use_ir_ops` and `restore` on whole models: same bits, same tokens, same everything else."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from torch import nn
from vllm_ir_host_transformers import restore, use_ir_ops
from vllm_ir_host_transformers.errors import UnknownFusing

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosts.transformers.tests.conftest import Zoo

Inputs = dict[str, torch.Tensor]
DTYPES = (torch.float32, torch.bfloat16)
LAYERS = 2
NAMES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "olmo2", "mixtral")


def forwards(model: nn.Module) -> dict[str, Any]:
    """Return the function that each module's forward is, and what its instance holds."""
    return {
        name: (getattr(module.forward, "__func__", None), "forward" in module.__dict__)
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_family_says_the_same_before_and_after(name: str, dtype: torch.dtype, batch: Inputs, zoo: Zoo) -> None:
    """Logits keep their bits and greedy tokens stay, with padding, two prompts and a cache; and once restored."""
    model = zoo.build(name, dtype)
    before, said = zoo.logits(model, batch), zoo.greedy(model, batch)
    replacement = use_ir_ops(model)
    assert torch.equal(zoo.logits(model, batch), before)
    assert zoo.greedy(model, batch) == said
    replacement.restore()
    assert torch.equal(zoo.logits(model, batch), before)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_calls_each_op_once_a_place(
    name: str, batch: Inputs, zoo: Zoo, counts: Callable[[], dict[str, int]]
) -> None:
    """A forward pass calls an op exactly as often as the report has places for it."""
    family, model = zoo.families[name], zoo.build(name)
    replacement = use_ir_ops(model)
    counts()
    zoo.logits(model, batch)
    wanted = {"rms_norm": family.norms - family.fused, "fused_add_rms_norm": family.fused, "rotary_embedding": LAYERS}
    if family.gate:
        wanted[family.gate] = LAYERS
    assert counts() == {op: count for op, count in wanted.items() if count} == replacement.ops
    assert replacement.norms == family.norms


def test_without_fusing_every_norm_runs_alone(
    llama: Any, batch: Inputs, counts: Callable[[], dict[str, int]], zoo: Zoo
) -> None:
    """`fuse_residual=False` puts all norms on `rms_norm` and says so of each layer."""
    replacement = use_ir_ops(llama, fuse_residual=False)
    counts()
    zoo.logits(llama, batch)
    assert counts()["rms_norm"] == 2 * LAYERS + 1
    assert {(place.kind, place.reason) for place in replacement.left} == {("residual", "fuse_residual is off")}


def test_below_float32_adds_are_left_alone_unless_always(
    batch: Inputs, counts: Callable[[], dict[str, int]], zoo: Zoo
) -> None:
    """In bfloat16 the default keeps the model's own rounding and gives the reason; "always" fuses."""
    model = zoo.build("llama", torch.bfloat16)
    left = use_ir_ops(model).left
    assert len(left) == LAYERS
    assert "in bfloat16 the fused op takes the variance of the sum before it is rounded" in left[0].reason
    replacement = use_ir_ops(model, fuse_residual="always")
    counts()
    zoo.logits(model, batch)
    assert counts()["fused_add_rms_norm"] == LAYERS
    assert replacement.left == ()


def test_the_fused_op_does_round_otherwise_in_bfloat16(batch: Inputs, zoo: Zoo) -> None:
    """The reason for the default is real: "always" moves the logits of a random model."""
    model = zoo.build("llama", torch.bfloat16)
    before = zoo.logits(model, batch)
    use_ir_ops(model, fuse_residual="always")
    assert not torch.equal(zoo.logits(model, batch), before)


def test_restore_leaves_nothing_behind(llama: Any) -> None:
    """Forwards, state_dict and the identity of every parameter are as they were."""
    before, state = forwards(llama), {name: value.clone() for name, value in llama.state_dict().items()}
    parameters = [id(parameter) for parameter in llama.parameters()]
    use_ir_ops(llama)
    assert forwards(llama) != before
    assert list(llama.state_dict()) == list(state)
    restore(llama)
    assert forwards(llama) == before
    assert all(torch.equal(value, state[name]) for name, value in llama.state_dict().items())
    assert [id(parameter) for parameter in llama.parameters()] == parameters


def test_the_value_is_a_context_manager(llama: Any) -> None:
    """`with use_ir_ops(model)` restores at its end, also after an error."""
    before = forwards(llama)
    with pytest.raises(KeyError), use_ir_ops(llama) as replacement:
        assert replacement.replaced
        raise KeyError
    assert forwards(llama) == before


def test_a_second_call_changes_nothing(llama: Any) -> None:
    """The same report and the same functions, and one `restore` is enough."""
    before, first = forwards(llama), use_ir_ops(llama)
    once = forwards(llama)
    assert use_ir_ops(llama) == first
    assert forwards(llama) == once
    restore(llama)
    assert forwards(llama) == before


def test_another_model_in_the_process_is_untouched(
    batch: Inputs, counts: Callable[[], dict[str, int]], zoo: Zoo
) -> None:
    """Of two models of one class only the replaced one calls ops, and both are right."""
    one, other = zoo.build("llama"), zoo.build("llama")
    wanted = zoo.logits(other, batch)
    use_ir_ops(one)
    counts()
    assert torch.equal(zoo.logits(other, batch), wanted)
    assert counts() == {}
    assert torch.equal(zoo.logits(one, batch), wanted)
    assert counts() != {}


def test_an_unknown_architecture_is_left_alone_with_reasons(batch: Inputs, zoo: Zoo) -> None:
    """GPT-2 has none of the shapes: nothing changes, and each kind of place says why."""
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=97))
    model.train(mode=False)
    before = zoo.logits(model, batch)
    replacement = use_ir_ops(model)
    assert replacement.replaced == ()
    assert {(place.kind, place.reason) for place in replacement.left} == {
        ("norm", "it subtracts the mean, so it is no RMS norm"),
        ("activation", "its forward has no act(gate) * up"),
    }
    assert torch.equal(zoo.logits(model, batch), before)


def test_a_model_without_anything_says_so() -> None:
    """A module with no place for an op gives an empty report, in words."""
    replacement = use_ir_ops(nn.Linear(2, 2))
    assert str(replacement) == "nothing here looks like an op of vllm-ir"


def test_norm_weights_in_float32_below_a_bfloat16_model(batch: Inputs, zoo: Zoo) -> None:
    """A mixed model promotes as it did: the same dtype and bits of every hidden state."""
    model = zoo.build("gemma2", torch.bfloat16)
    for module in model.modules():
        if "RMSNorm" in type(module).__name__:
            module.float()
    before = zoo.logits(model, batch)
    replacement = use_ir_ops(model)
    assert torch.equal(zoo.logits(model, batch), before)
    assert replacement.ops["rms_norm"] == 4 * LAYERS + 1


def test_under_autocast_it_says_the_same(llama: Any, batch: Inputs, zoo: Zoo) -> None:
    """Autocast mixes bfloat16 activations with float32 weights and residuals."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = zoo.logits(llama, batch)
        use_ir_ops(llama)
        assert torch.equal(zoo.logits(llama, batch), before)


def test_an_adapter_inside_a_projection_keeps_working(llama: Any, batch: Inputs, zoo: Zoo) -> None:
    """Projections are called and never read, so what stands in their place is honoured."""

    class Adapter(nn.Module):
        """A projection with something added to it, as LoRA does."""

        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base, self.more = base, nn.Linear(base.in_features, base.out_features, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the sum of both."""
            result: torch.Tensor = self.base(x) + self.more(x)
            return result

    use_ir_ops(llama)
    for layer in llama.model.layers:
        layer.mlp.gate_proj = Adapter(layer.mlp.gate_proj)
        layer.self_attn.o_proj = Adapter(layer.self_attn.o_proj)
    got = zoo.logits(llama, batch)
    restore(llama)
    assert torch.equal(got, zoo.logits(llama, batch))


def test_a_single_layer_can_be_replaced(batch: Inputs, zoo: Zoo) -> None:
    """Part of a model is a model too; what cannot be checked from there is left with its reason."""
    model = zoo.build("llama")
    before = zoo.logits(model, batch)
    replacement = use_ir_ops(model.model.layers[0])
    assert replacement.ops == {"fused_add_rms_norm": 1, "silu_and_mul": 1, "rms_norm": 1}
    assert [place.reason for place in replacement.left] == [
        "no rotary_emb stands above it, so its cosines cannot be checked"
    ]
    assert torch.equal(zoo.logits(model, batch), before)


def test_another_forward_on_the_instance_is_not_overwritten(llama: Any) -> None:
    """What somebody else put on an instance stays, and the report says why nothing was done there."""
    norm = llama.model.norm
    theirs = functools.partial(norm.forward)
    norm.forward = theirs
    replacement = use_ir_ops(llama)
    (left,) = (place for place in replacement.left if place.name == "model.norm")
    assert "has been replaced on this instance already" in left.reason
    assert norm.forward is theirs
    restore(llama)
    assert norm.forward is theirs


def test_forwards_that_accelerate_wraps_later_are_restored_inside_its_wrapper(
    llama: Any, batch: Inputs, zoo: Zoo
) -> None:
    """Hooks of accelerate keep our forward under another name; `restore` finds it there."""
    accelerate = pytest.importorskip("accelerate")
    before = zoo.logits(llama, batch)
    use_ir_ops(llama)
    accelerate.hooks.add_hook_to_module(llama.model.norm, accelerate.hooks.ModelHook())
    assert torch.equal(zoo.logits(llama, batch), before)
    restore(llama)
    kept: Any = llama.model.norm._old_forward
    assert kept.__func__ is type(llama.model.norm).forward
    assert torch.equal(zoo.logits(llama, batch), before)


@pytest.mark.parametrize("given", ["never", "alwayz", 2, None])
def test_a_way_of_fusing_that_there_is_not(llama: Any, given: Any) -> None:
    """The command line's own word "never" once fused everything."""
    with pytest.raises(UnknownFusing, match="wanted True"):
        use_ir_ops(llama, fuse_residual=given)
