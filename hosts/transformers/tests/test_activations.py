"""Gated activations: recognised by shape and bits, run through the op, and left to the model where they must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from vllm_ir import Unsupported
from vllm_ir_host_transformers import activations, use_ir_ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from hosts.transformers.tests.conftest import Zoo


class Gated(nn.Module):
    """A gated feed-forward block as Llama has it."""

    def __init__(self, activation: Any, size: int = 32) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(8, size), nn.Linear(8, size)
        self.down_proj = nn.Linear(size, 8)
        self.act_fn = activation

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        result: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return result


class UpFirst(Gated):
    """Computes up before gate."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        result: Tensor = self.down_proj(self.up_proj(x) * self.act_fn(self.gate_proj(x)))
        return result


class Packed(Gated):
    """Cuts one projection in two, as Phi-3 does."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        both = torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)
        gate, both = both.chunk(2, dim=-1)
        both = both * self.act_fn(gate)
        result: Tensor = self.down_proj(both)
        return result


class PackedAndKept(Gated):
    """Cuts one projection in two and reads a half again."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        both = torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)
        gate, up = both.chunk(2, dim=-1)
        product = self.act_fn(gate) * up
        result: Tensor = self.down_proj(product + gate)
        return result


class Broadcast(Gated):
    """Multiplies by something of another shape."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        result: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x)[..., :1])
        return result


class Ungated(Gated):
    """Has an activation and multiplies nothing."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's result."""
        result: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("block", [Gated, UpFirst, Packed, PackedAndKept, Broadcast])
@pytest.mark.parametrize(
    ("name", "op"), [("silu", "silu_and_mul"), ("gelu", "gelu_and_mul"), ("gelu_pytorch_tanh", "gelu_and_mul")]
)
def test_every_way_to_write_it_gives_the_same(name: str, op: str, block: type[Gated], dtype: torch.dtype) -> None:
    """Either order, packed or apart, a half used again, another shape: the block's result stays."""
    torch.manual_seed(0)
    module, x = block(ACT2FN[name]).to(dtype), torch.randn(3, 8).to(dtype)
    wanted = module(x)
    assert use_ir_ops(module).ops == {op: 1}
    # The erf of two kernels differs by a unit in the last place now and then, which the op's contract allows.
    torch.testing.assert_close(module(x), wanted, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("block", "calls"), [(Gated, 1), (UpFirst, 1), (Packed, 1), (PackedAndKept, 1), (Broadcast, 0)]
)
def test_the_op_is_called_where_it_means_the_same(
    block: type[Gated], calls: int, counts: Callable[[], dict[str, int]]
) -> None:
    """Once a pass, and not for operands of two shapes."""
    module = block(nn.SiLU())
    use_ir_ops(module)
    counts()
    module(torch.randn(3, 8))
    assert counts().get("silu_and_mul", 0) == calls


@pytest.mark.parametrize(("block", "copies"), [(Gated, 1), (Packed, 1), (PackedAndKept, 2)])
def test_a_packed_projection_is_not_copied(block: type[Gated], copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phi-3's halves lie side by side already; only a half that is needed again costs a copy of both."""
    module = block(nn.SiLU())
    use_ir_ops(module)
    made: list[int] = []
    own = torch.cat

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        """Count a copy and make it."""
        made.append(1)
        return own(*args, **kwargs)

    monkeypatch.setattr(torch, "cat", counted)
    module(torch.randn(3, 8))
    assert len(made) == copies


@pytest.mark.parametrize(
    ("activation", "reason"),
    [
        (nn.ReLU(), "ReLU is neither SiLU nor GELU, bit for bit"),
        (ACT2FN["quick_gelu"], "QuickGELUActivation is neither SiLU nor GELU, bit for bit"),
        (lambda x: x.silu(), "function is neither SiLU nor GELU, bit for bit"),
    ],
)
def test_another_activation_is_left(activation: Any, reason: str) -> None:
    """What is not the op's activation stays, also one that fails when asked."""
    (left,) = use_ir_ops(Gated(activation)).left
    assert (left.kind, left.reason) == ("activation", reason)


def test_a_plain_function_and_an_activation_in_place_will_do(counts: Callable[[], dict[str, int]]) -> None:
    """`torch.nn.functional.silu` and `nn.SiLU(inplace=True)` mean the same as the module."""
    for activation in (nn.functional.silu, nn.SiLU(inplace=True)):
        module, x = Gated(activation), torch.randn(3, 8)
        with torch.no_grad():
            wanted = module(x)
            use_ir_ops(module)
            assert torch.equal(module(x), wanted)
    assert counts() == {"silu_and_mul": 2}


def test_a_block_without_a_product_is_left() -> None:
    """GPT-2's kind of block has nothing for a gated op."""
    (left,) = use_ir_ops(Ungated(nn.SiLU())).left
    assert left.reason == "its forward has no act_fn(gate) * up"


def test_a_hook_on_the_activation_still_fires(counts: Callable[[], dict[str, int]]) -> None:
    """Who waits for the activation gets its input and output, and the model's own product runs."""
    module, seen = Gated(nn.SiLU()), []
    use_ir_ops(module)
    handle = module.act_fn.register_forward_hook(lambda _, inputs, result: seen.append((inputs, result)))
    counts()
    module(torch.randn(3, 8))
    assert (len(seen), counts()) == (1, {})
    handle.remove()
    module(torch.randn(3, 8))
    assert counts() == {"silu_and_mul": 1}


def test_the_projections_are_called_in_the_order_of_the_source() -> None:
    """Dropout inside an adapter draws the same numbers, because gate and up are computed in the same order."""
    for block, order in ((Gated, ["gate_proj", "up_proj"]), (UpFirst, ["up_proj", "gate_proj"])):
        module, called = block(nn.SiLU()), list[str]()
        for name in ("gate_proj", "up_proj"):
            module.get_submodule(name).register_forward_hook(lambda *_, n=name, to=called: to.append(n))
        use_ir_ops(module)
        module(torch.randn(3, 8))
        assert called == order


def test_experts_are_left(zoo: Zoo) -> None:
    """Experts hold bare weights that Transformers multiplies with by code of its choice."""
    found = activations.recognise(zoo.build("mixtral").model.layers[0].mlp.experts)
    assert isinstance(found, Unsupported)
    assert "bare weights" in found.reason


@pytest.mark.parametrize(("width", "wanted"), [(64, ""), (37, "rows of 37: a last bit may differ")])
def test_a_width_that_ends_within_a_vector_is_noted(width: int, wanted: str) -> None:
    """The report says where the end of a row may be computed by another instruction, and is silent otherwise."""
    module: Any = Gated(nn.SiLU(), width)
    module.intermediate_size = width
    (place,) = use_ir_ops(module).replaced
    if not torch.equal(*_both_ways(width)):
        assert place.note == wanted
    else:
        assert place.note == ""


def _both_ways(width: int) -> tuple[Tensor, Tensor]:
    """Return SiLU of rows as they lie in one tensor and as they lie in half of one."""
    x = torch.randn(6, 2 * width, generator=torch.Generator().manual_seed(width))
    return nn.functional.silu(x[:, :width].contiguous()), nn.functional.silu(x[:, :width])
