"""What a replaced layer computes is what vLLM's computes by its own code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_host_vllm.layers.forwards import Calls
from vllm_ir_host_vllm.layers.replacing import replace

if TYPE_CHECKING:
    from vllm_ir.runtime import Runtime

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def replaced(fake_vllm: Any, state: Runtime) -> None:
    """Replace every layer of the vLLM in miniature, in a process where nobody goes before native."""
    replace(fake_vllm.layers, lambda _kind: None)
    assert state.registry.get("silu_and_mul").get_priority() == ["native"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_is_float32_inside_and_rounds_before_the_weight(fake_vllm: Any, dtype: torch.dtype) -> None:
    """The formula is written out here as vLLM has it."""
    norm = fake_vllm.layernorm.RMSNorm(16, dtype=dtype)
    x = torch.randn(4, 16, dtype=dtype)
    wide = x.float()
    plain = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(dtype)
    assert torch.equal(norm(x), plain * norm.weight.data)


def test_a_norm_without_weight_multiplies_by_nothing(fake_vllm: Any) -> None:
    """VLLM passes None then, and for the sum by a flag of its own."""
    norm = fake_vllm.layernorm.RMSNorm(16, has_weight=False)
    x = torch.randn(4, 16)
    assert torch.equal(norm(x), ops.rms_norm(x, None, 1e-6))
    norm.pass_weight_add = True
    out, _ = norm(x.clone(), x.clone())
    assert torch.equal(out, ops.fused_add_rms_norm(x, x, norm.weight.data, 1e-6)[0])


def test_the_size_of_the_variance_is_handed_on(fake_vllm: Any) -> None:
    """Some models norm a part of a row."""
    norm = fake_vllm.layernorm.RMSNorm(16)
    norm.variance_size_override = 8
    x = torch.randn(4, 16)
    assert torch.equal(norm(x), ops.rms_norm(x, norm.weight.data, 1e-6, 8))


def test_gemma_adds_one_to_the_weight_in_float32(fake_vllm: Any) -> None:
    """One plus a small weight is one in bfloat16."""
    norm = fake_vllm.layernorm.GemmaRMSNorm(16)
    x = torch.randn(4, 16, dtype=torch.bfloat16)
    weight = norm.weight.data.float() + 1.0
    assert torch.equal(norm(x), ops.rms_norm(x, weight, 1e-6))
    kept = x.clone()
    out, total = norm(x, x)
    assert torch.equal(x, kept)
    assert torch.equal(total, x + x)
    assert torch.equal(out, ops.fused_add_rms_norm(x, x, weight, 1e-6)[0])


def test_the_gate_is_called_with_and_without_a_layer(fake_vllm: Any) -> None:
    """VLLM has it as a static method, and calls it so in other layers."""
    x = torch.randn(4, 16)
    wanted = torch.nn.functional.silu(x[:, :8]) * x[:, 8:]
    layer = fake_vllm.activation.SiluAndMul()
    assert torch.equal(layer(x), wanted)
    assert torch.equal(type(layer).forward_native(x), wanted)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_approximation_is_the_layer_s(fake_vllm: Any, approximate: str) -> None:
    """The two differ in the third digit."""
    x = torch.randn(4, 16)
    wanted = torch.nn.functional.gelu(x[:, :8], approximate=approximate) * x[:, 8:]
    assert torch.equal(fake_vllm.activation.GeluAndMul(approximate)(x), wanted)


def test_rotation_turns_query_and_key_and_needs_both(fake_vllm: Any) -> None:
    """A layer that shares the keys of another gives none; vLLM's own code runs for it."""
    layer = fake_vllm.rotary.RotaryEmbedding()
    query, key, positions = torch.randn(3, 16), torch.randn(3, 8), torch.tensor([0, 5, 9])
    wanted = ops.rotary_embedding(positions, query, key, 8, 8, layer.cos_sin_cache, True)  # noqa: FBT003 - the op's own
    turned = layer(positions, query.clone(), key.clone())
    assert all(torch.equal(got, want) for got, want in zip(turned, wanted, strict=True))
    assert layer(positions, query) == "vLLM's own"


def test_priorities_decide_who_runs(fake_vllm: Any, state: Runtime) -> None:
    """A layer calls the op, and the op asks its priority at each call."""
    norm, op, calls = fake_vllm.layernorm.RMSNorm(16), state.registry.get("rms_norm"), []

    @op.register_impl("counting")
    def counting(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> torch.Tensor:
        """Count and compute."""
        calls.append(1)
        result: torch.Tensor = op.declaration.native(x, weight, epsilon, variance_size)
        return result

    norm(torch.ones(2, 16))
    assert calls == []
    with op.set_priority(["counting"]):
        norm(torch.ones(2, 16))
    assert calls == [1]
    assert counting.provider == "counting"


def test_where_native_leads_dynamo_sees_its_code_and_eager_calls_the_op(fake_vllm: Any, state: Runtime) -> None:
    """A graph that is compiled ahead of time would call native through torch for every layer otherwise."""
    replace(fake_vllm.layers, lambda _kind: None, calls=Calls(frozenset({"rms_norm"})))
    norm, nodes = fake_vllm.layernorm.RMSNorm(16), list[str]()
    x = torch.randn(4, 16)

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Keep the names of what is called."""
        nodes.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    with torch.no_grad():
        compiled = torch.compile(lambda x: norm(norm(x), x), backend=backend, fullgraph=True)
        out, _ = compiled(x)
        assert torch.equal(out, norm(norm(x), x)[0])
    assert [name for name in nodes if "vllm_ir" in name or "fused_add" in name]
    assert not [name for name in nodes if ".rms_norm" in name]
    op = state.registry.get("rms_norm")
    op.register_impl("zeros")(zeros)
    with op.set_priority(["zeros"]):
        assert torch.equal(norm(x), torch.zeros(4, 16))


def zeros(
    x: torch.Tensor, weight: torch.Tensor | None, epsilon: float, variance_size: int | None = None
) -> torch.Tensor:
    """Return zeros."""
    del weight, epsilon, variance_size
    return torch.zeros_like(x)
