"""What only an NVIDIA GPU can show; every test here is skipped, with the reason, where there is none.

Conformance, streams, graphs and devices at large are the test kit's (`vllm-ir conformance vllm_c`); the session `gpu`
of nox runs both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops, warm_up
from vllm_ir_provider_vllm_c import kernels, loading
from vllm_ir_provider_vllm_c.errors import NotWarm

if TYPE_CHECKING:
    from collections.abc import Callable

    Matches = Callable[[str, Any, Any], None]

pytestmark = pytest.mark.gpu

OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_op_matches_native(op: str, dtype: torch.dtype, matches: Matches) -> None:
    """On the device, native too."""
    args = getattr(ops, op).generate_inputs(num_tokens=33, hidden_size=4096, dtype=dtype, device="cuda")
    expected = getattr(ops, op).impls["native"].impl_fn(*args)
    matches(op, getattr(kernels, op).func_impl_fn(*args), expected)


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
