"""What only a GPU can show; every test here is skipped, with the reason, where there is none.

Conformance, streams, graphs and devices at large are the test kit's (`vllm-ir conformance triton`); the session `gpu`
of nox runs both.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm_ir import ops, warm_up
from vllm_ir_provider_triton import configuration, declared, invariant, kernels, loading, tuning
from vllm_ir_provider_triton.errors import NotWarm

pytestmark = pytest.mark.gpu

OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding")
FIXED = OPS[:4]
FORMATS = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BATCHES = (*range(1, 128), *range(131, 1024, 17), *range(1027, 4096, 160))
"""200 batch sizes, odd and even."""

EPSILON = 1e-6


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_every_op_matches_native(op: str, dtype: torch.dtype) -> None:
    """On the device, native too: bfloat16 one element in 10,000, one unit."""
    args = getattr(ops, op).generate_inputs(num_tokens=333, hidden_size=4096, dtype=dtype, device="cuda")
    wanted = tensors(getattr(ops, op).impls["native"].impl_fn(*args))
    providers = (kernels, invariant)
    for provider in providers:
        for got, native in zip(tensors(getattr(provider, op).func_impl_fn(*args)), wanted, strict=True):
            tolerance = getattr(ops, op).get_tolerance(dtype)
            torch.testing.assert_close(got, native, **tolerance)
            if dtype == torch.bfloat16:
                assert int((got != native).sum()) <= got.numel() * 1e-4


@pytest.mark.parametrize("quant_dtype", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", declared.FREE)
def test_every_quantising_op_matches_native(op: str, dtype: torch.dtype, quant_dtype: torch.dtype) -> None:
    """On the device: of quantisation alone every bit, of what is computed first all but one in 1,000 elements."""
    given = {"quant_dtype": quant_dtype} if "quant" in op else {}
    args = getattr(ops, op).generate_inputs(num_tokens=333, hidden_size=4096, dtype=dtype, device="cuda", **given)
    wanted = tensors(getattr(ops, op).impls["native"].impl_fn(*args))
    for got, native in zip(tensors(declared.FREE[op].func_impl_fn(*args)), wanted, strict=True):
        assert (got.shape, got.dtype, got.stride()) == (native.shape, native.dtype, native.stride())
        if op in ("static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8"):
            assert torch.equal(got.view(torch.uint8), native.view(torch.uint8))
        elif got.element_size() == 1:
            assert int((got.float() != native.float()).sum()) <= got.numel() * 1e-3
        else:
            torch.testing.assert_close(got, native, **getattr(ops, op).get_tolerance(dtype))


@pytest.mark.parametrize("quant_dtype", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_is_rounded_to_8_bits_as_on_a_cpu(dtype: torch.dtype, quant_dtype: torch.dtype) -> None:
    """By the instruction where there is one: all numbers of a half, NaN and infinities among them."""
    x = torch.arange(65536).to(torch.int32).to(torch.int16).view(dtype).view(64, 1024)
    wanted = ops.static_quant_fp8.impls["native"].impl_fn(x, torch.ones(1), quant_dtype).float()
    got = declared.FREE["static_quant_fp8"].impl_fn(x.cuda(), torch.ones(1, device="cuda"), quant_dtype).cpu().float()
    assert torch.equal(got.isnan(), wanted.isnan())
    there = ~wanted.isnan()
    assert torch.equal(got[there].view(torch.int32), wanted[there].view(torch.int32))


@pytest.mark.parametrize("op", declared.FIXED)
def test_a_quantised_row_has_the_same_bits_in_any_batch(op: str) -> None:
    """At the beginning of the batch and at odd addresses in its middle."""
    args = getattr(ops, op).generate_inputs(num_tokens=1100, hidden_size=1000, dtype=torch.bfloat16, device="cuda")
    implementation = declared.FIXED[op].func_impl_fn
    whole = tensors(implementation(*args))
    for batch in BATCHES[::8]:
        for start in (0, 37):
            if start + batch > 1100:
                continue
            rows = slice(start, start + batch)
            part = [
                each[rows] if isinstance(each, torch.Tensor) and each.dim() and each.shape[0] == 1100 else each
                for each in args
            ]
            for got, all_rows in zip(tensors(implementation(*part)), whole, strict=True):
                kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
                assert torch.equal(got.view(kind), all_rows[rows].view(kind)), (batch, start)


@pytest.mark.parametrize("hidden", [576, 1000, 4096, 8192, 20480])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FIXED)
def test_a_row_has_the_same_bits_in_200_batches(op: str, dtype: torch.dtype, hidden: int) -> None:
    """At the beginning of the batch and at odd addresses in its middle."""
    assert len(set(BATCHES)) == 200
    args = getattr(ops, op).generate_inputs(num_tokens=4200, hidden_size=hidden, dtype=dtype, device="cuda")
    implementation = getattr(invariant, op).func_impl_fn
    whole = tensors(implementation(*args))
    for batch in BATCHES:
        for start in (0, 37):
            part = [
                each[start : start + batch] if isinstance(each, torch.Tensor) and each.dim() > 1 else each
                for each in args
            ]
            for got, all_rows in zip(tensors(implementation(*part)), whole, strict=True):
                assert torch.equal(got, all_rows[start : start + batch]), (batch, start)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_the_sum_is_no_launchs(dtype: torch.dtype) -> None:
    """Rows, warps and alignment change no bit of the batch-invariant norm."""
    x, weight, _ = ops.rms_norm.generate_inputs(num_tokens=70, hidden_size=2048, dtype=dtype, device="cuda")
    wanted = invariant.rms_norm.impl_fn(x, weight, EPSILON)
    longer = torch.cat((torch.zeros(1, dtype=dtype, device="cuda"), x.flatten()))[1:].view(x.shape)
    assert torch.equal(invariant.rms_norm.impl_fn(longer, weight, EPSILON), wanted)
    for candidate in tuning.FIXED.candidates("rms_norm", (x, weight, EPSILON)):
        with tuning.FIXED.using(candidate):
            assert torch.equal(invariant.rms_norm.impl_fn(x, weight, EPSILON), wanted), str(candidate)


def test_a_captured_graph_replays_on_new_inputs() -> None:
    """Warm kernels are captured as they are."""
    warm_up("cuda", [torch.bfloat16])
    x, weight, _ = ops.rms_norm.generate_inputs(num_tokens=8, hidden_size=4096, dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.rms_norm.impl_fn(x, weight, EPSILON)
    x.normal_()
    graph.replay()
    assert torch.equal(out, kernels.rms_norm.impl_fn(x, weight, EPSILON))


def test_a_cold_kernel_does_not_spoil_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error that says how to warm up."""
    monkeypatch.setattr(loading, "_LOADED", {})
    x = torch.randn(8, 64, device="cuda")
    with pytest.raises(NotWarm), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kernels.rms_norm.impl_fn(x, None, EPSILON)


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


def test_this_gpu_has_facts_of_its_own() -> None:
    """Its architecture is in the table, or is taken for one that is."""
    arch = loading.architecture(torch.device("cuda", torch.cuda.current_device()))
    assert arch.startswith(("sm_", "gfx"))
    lanes = torch.cuda.get_device_properties(0).warp_size
    assert configuration.machine(arch).lanes == lanes
