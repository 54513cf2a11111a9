"""What only an NVIDIA GPU can show; every test here is skipped, with the reason, where there is none.

Conformance, streams, graphs and devices at large are the test kit's (`vllm-ir conformance vllm_c`); the session `gpu`
of nox runs both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops, warm_up
from vllm_ir_provider_vllm_c import kernels, loading, norm_quant_kernels, quant_kernels, quant_predicates, variants
from vllm_ir_provider_vllm_c.errors import NotWarm

if TYPE_CHECKING:
    from collections.abc import Callable

    Matches = Callable[[str, Any, Any], None]

pytestmark = pytest.mark.gpu

OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding", "fused_qk_norm_rope")
QUANTISING = [op for op in variants.OPS if "quant" in op]
EXACT = ("static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_op_matches_native(op: str, dtype: torch.dtype, matches: Matches) -> None:
    """On the device, native too."""
    args = getattr(ops, op).generate_inputs(num_tokens=33, hidden_size=4096, dtype=dtype, device="cuda")
    expected = getattr(ops, op).impls["native"].impl_fn(*args)
    matches(op, getattr(kernels, op).func_impl_fn(*args), expected)


@pytest.mark.parametrize("op", QUANTISING)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fp8", quant_predicates.DTYPES)
def test_every_quantising_op_matches_native(op: str, dtype: torch.dtype, fp8: torch.dtype) -> None:
    """Bit for bit where nothing is summed and no exp taken; elsewhere nearly all values, and the rest one unit off."""
    given = {"num_tokens": 33, "hidden_size": 4096, "dtype": dtype, "device": "cuda", "quant_dtype": fp8}
    args = getattr(ops, op).generate_inputs(**given)
    expected = getattr(ops, op).impls["native"].impl_fn(*args)
    got = getattr(norm_quant_kernels if "norm" in op else quant_kernels, op).func_impl_fn(*args)
    got, expected = (each if isinstance(each, tuple) else (each,) for each in (got, expected))
    wrong = (got[0].view(torch.uint8) != expected[0].view(torch.uint8)).float().mean()
    assert wrong <= (0.0 if op in EXACT else 0.01)
    torch.testing.assert_close(got[0].float(), expected[0].float(), rtol=0.26, atol=2.0**-9)
    for one, other in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=0.0 if op in EXACT else 0.01, atol=0.0)


def test_a_captured_graph_replays_on_new_inputs() -> None:
    """Warm kernels are captured as they are."""
    warm_up("cuda", [torch.bfloat16])
    x, weight, _ = ops.rms_norm.generate_inputs(num_tokens=8, hidden_size=4096, dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.rms_norm.impl_fn(x, weight, 1e-6)
    x.normal_()
    graph.replay()
    assert torch.equal(out, kernels.rms_norm.impl_fn(x, weight, 1e-6))


def test_a_cold_kernel_does_not_spoil_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error that says how to warm up."""
    monkeypatch.setattr(loading, "_LOADED", {})
    x = torch.randn(8, 64, device="cuda")
    with pytest.raises(NotWarm), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kernels.rms_norm.impl_fn(x, None, 1e-6)


def test_the_current_stream_is_used() -> None:
    """A kernel waits for what its own stream does before, and for nothing else."""
    x = torch.zeros(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10_000_000)
        x.fill_(2.0)
        got = kernels.rms_norm.impl_fn(x, None, 0.0)
    torch.cuda.synchronize()
    assert torch.equal(got, torch.ones_like(got))


def test_a_second_device_has_kernels_of_its_own() -> None:
    """Whichever device is current."""
    if torch.cuda.device_count() == 1:
        pytest.skip("needs two NVIDIA GPUs; there is one")
    x = torch.randn(4, 64, device="cuda:1")
    assert torch.equal(kernels.silu_and_mul.impl_fn(x).cpu(), kernels.silu_and_mul.impl_fn(x.to("cuda:0")).cpu())
