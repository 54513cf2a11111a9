"""The shape `add, keep, norm` in a layer's source: found where it stands, donated only where no name is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from vllm_ir_host_transformers import norms, residual, use_ir_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosts.transformers.tests.conftest import Zoo


class MiniRMSNorm(nn.Module):
    """An RMS norm as Llama has it."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size))
        self.variance_epsilon = 1e-5

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the norm."""
        dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(dtype)


class Layer(nn.Module):
    """The parts that the layers below put together."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = MiniRMSNorm(), MiniRMSNorm()
        self.mix, self.feed = nn.Linear(8, 8), nn.Linear(8, 8)


class PlainLayer(Layer):
    """The shape, as in Llama."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the layer's result."""
        residual = hidden_states
        hidden_states = self.before(hidden_states)
        hidden_states = self.mix(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.after(hidden_states)
        hidden_states = residual + self.feed(hidden_states)
        return hidden_states  # noqa: RET504 - the shape under test


class TurnedLayer(Layer):
    """The add the other way round, of an expression, as in Granite and Phi-3."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result."""
        kept = x
        x = self.before(x)
        x = self.mix(x) * 0.5 + kept
        kept = x
        x = self.after(x)
        result: Tensor = kept + self.feed(x)
        return result


class TwoAddsLayer(Layer):
    """Two adds before two norms, as with cross attention."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result."""
        kept = x
        x = self.mix(x)
        x = kept + x
        kept = x
        x = self.before(x)
        x = self.mix(x)
        x = kept + x
        kept = x
        x = self.after(x)
        result: Tensor = kept + self.feed(x)
        return result


class AliasLayer(Layer):
    """Keeps the input under a third name and reads it at the end."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the layer's result."""
        first = hidden_states.view(hidden_states.shape)
        residual = hidden_states
        hidden_states = self.before(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.after(hidden_states)
        return residual + hidden_states + first


class BranchLayer(Layer):
    """Has a branch before the add, which is not followed."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the layer's result."""
        residual = hidden_states
        if self.training:
            hidden_states = self.before(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.after(hidden_states)
        return residual + hidden_states


class LateLayer(Layer):
    """A norm after the sublayer and before the add, as in OLMo 2: nothing to fuse."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the layer's result."""
        residual = hidden_states
        hidden_states = self.after(self.mix(hidden_states))
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.feed(hidden_states)
        result: Tensor = residual + self.before(hidden_states)
        return result


LAYERS = (PlainLayer, TurnedLayer, TwoAddsLayer, AliasLayer, BranchLayer, LateLayer)


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [
        (PlainLayer, ["after"]),
        (TurnedLayer, ["after"]),
        (TwoAddsLayer, ["before", "after"]),
        (AliasLayer, ["after"]),
        (BranchLayer, ["after"]),
    ],
)
def test_the_norms_behind_an_add_are_found(layer: type[nn.Module], wanted: list[str]) -> None:
    """Either order of the add, any expression, any names, more than once."""
    found = residual.fusions(layer())
    assert isinstance(found, tuple)
    assert [fusion.norm for fusion in found] == wanted


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [(PlainLayer, True), (TurnedLayer, True), (TwoAddsLayer, True), (AliasLayer, False), (BranchLayer, False)],
)
def test_only_without_a_third_name_may_a_layer_donate(layer: type[nn.Module], wanted: bool) -> None:
    """A name that may stand for the same tensor and is read later, or code that is not followed, forbids it."""
    assert residual.donates(layer.forward) is wanted


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_shape_gives_the_same_bits(layer: type[nn.Module], dtype: torch.dtype) -> None:
    """Whatever is fused or left, the layer's result keeps its bits."""
    torch.manual_seed(0)
    module, x = layer().to(dtype).eval(), torch.randn(3, 8).to(dtype)
    with torch.no_grad():
        wanted = module(x.clone())
        use_ir_ops(module)
        assert torch.equal(module(x.clone()), wanted)


def test_a_norm_that_is_not_recognised_is_not_fused() -> None:
    """The shape alone is not enough: behind the add stands a LayerNorm."""
    module = PlainLayer()
    module.after = nn.LayerNorm(8)  # type: ignore[assignment]
    replacement = use_ir_ops(module)
    reasons = {place.kind: place.reason for place in replacement.left}
    assert reasons["residual"] == "no add stands right before a norm in its forward"
    assert "fused_add_rms_norm" not in replacement.ops


@pytest.mark.parametrize(
    "change",
    [
        lambda h, r: (h, r.double()),
        lambda h, r: (h, r[:1]),
        lambda h, r: (h.to(torch.bfloat16), r.to(torch.bfloat16)),
        lambda h, r: (h.double(), r.double()),
    ],
    ids=["dtypes differ", "broadcast", "bfloat16", "float64"],
)
def test_operands_that_the_op_does_not_mean_are_added_by_the_model(
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], counts: Callable[[], dict[str, int]]
) -> None:
    """Other dtypes, shapes and precisions than those that were looked at keep the model's own add."""
    norm, layer = MiniRMSNorm(), nn.Identity()
    flavour = norms.recognise(norm)
    assert isinstance(flavour, norms.Flavour)
    use_ir_ops(norm)
    add: Any = residual._add_norm(flavour, residual.EXACT, may_donate=True)
    hidden, kept = change(torch.randn(3, 8), torch.randn(3, 8))
    counts()
    with torch.no_grad():
        out, total = add(layer, norm, hidden, kept)
    assert torch.equal(total, kept + hidden)
    assert torch.equal(out, MiniRMSNorm.forward(norm, total))
    assert "fused_add_rms_norm" not in counts()


def test_a_norm_replaced_by_someone_else_later_is_called(llama: Any, zoo: Zoo) -> None:
    """After `use_ir_ops` somebody puts a forward on a fused norm: it runs, and is not fused away."""
    use_ir_ops(llama)
    norm, called = llama.model.layers[0].post_attention_layernorm, list[tuple[int, ...]]()

    def theirs(x: Tensor) -> Tensor:
        """Note the call and do nothing."""
        called.append(tuple(x.shape))
        return x

    norm.forward = theirs
    zoo.logits(llama, {"input_ids": torch.ones(1, 3, dtype=torch.long)})
    assert called == [(1, 3, 64)]
