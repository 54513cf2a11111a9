"""Which quantised calls are refused, in which words, and that the compiled check and the written one agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm_ir import Unsupported, ops
from vllm_ir_provider_cpu_c import predicates, quant_predicates

X, ONE = torch.ones(4, 64), torch.ones(1)
E4M3 = torch.float8_e4m3fn
REFUSED: tuple[tuple[str, tuple[Any, ...], Unsupported], ...] = (
    ("static_quant_fp8", (X.double(), ONE), predicates.NEEDS_DTYPE),
    ("static_quant_fp8", (X.T, ONE), predicates.NEEDS_ADJACENT),
    ("static_quant_fp8", (X, ONE, torch.float16), quant_predicates.NEEDS_QUANTIZED),
    ("static_quant_fp8", (X, ONE.double()), quant_predicates.NEEDS_CHANNELS),
    ("static_quant_fp8", (X, torch.ones(128)[::2]), quant_predicates.NEEDS_CHANNELS),
    ("static_quant_fp8", (X, torch.ones(1, 64)), quant_predicates.NEEDS_CHANNELS),
    ("static_quant_fp8", (X, ONE.to("meta")), predicates.NEEDS_CPU),
    ("dynamic_quant_fp8", (torch.ones(4, 0),), quant_predicates.NEEDS_ELEMENTS),
    ("dynamic_quant_fp8", (X, True, torch.ones(64)), quant_predicates.NEEDS_SCALE),
    ("dynamic_quant_fp8", (X.int(),), predicates.NEEDS_DTYPE),
    ("dynamic_group_quant_fp8", (X, 48), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, 0), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, True), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, None), quant_predicates.NEEDS_GROUPS),
    ("dynamic_group_quant_fp8", (X, "8"), quant_predicates.NEEDS_GROUPS),
    ("rms_norm_static_quant_fp8", (X, None, torch.ones(64), 1e-6), quant_predicates.NEEDS_SCALE),
    ("rms_norm_static_quant_fp8", (X, torch.ones(63), ONE, 1e-6), predicates.NEEDS_WEIGHT),
    ("rms_norm_dynamic_quant_fp8", (X.half(), torch.ones(64).bfloat16(), 1e-6), predicates.NEEDS_WEIGHT_DTYPE),
    ("fused_add_rms_norm_static_quant_fp8", (X, X.half(), None, ONE, 1e-6), predicates.NEEDS_RESIDUAL),
    ("fused_add_rms_norm_dynamic_quant_fp8", (X, X[:1], None, 1e-6), predicates.NEEDS_RESIDUAL),
    ("silu_and_mul_static_quant_fp8", (torch.ones(4, 7), ONE), predicates.NEEDS_HALVES),
    ("silu_and_mul_dynamic_quant_fp8", (X.to("meta"),), predicates.NEEDS_CPU),
    ("silu_and_mul_group_quant_fp8", (X, 64), quant_predicates.NEEDS_GROUPS),
)


@pytest.mark.parametrize(("op", "args", "reason"), REFUSED)
def test_a_quantisation_that_no_kernel_takes_is_refused(op: str, args: tuple[Any, ...], reason: Unsupported) -> None:
    """Each refusal is a constant whose sentence says what is needed, and a fake tensor gets the same."""
    verdict = getattr(quant_predicates, op)(*args)
    assert verdict is reason
    assert str(verdict).startswith(("needs", "quantises"))
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        faked = getattr(quant_predicates, op)(*fakes)
    only_the_batch = "add" in op and args[0].shape[0] != args[1].shape[0]
    assert faked is (True if only_the_batch else reason)


SHAPES = st.sampled_from([(), (8,), (3, 8), (2, 3, 8), (0, 8), (3, 7), (3, 1), (3, 0)])
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64])
SCALES = st.sampled_from([(), (1,), (8,), (7,), (4,), (1, 1)])


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from([name for name in ops.__all__ if "quant_fp8" in name]),
    shape=SHAPES,
    dtype=DTYPES,
    scale=SCALES,
    scale_dtype=st.sampled_from([torch.float32, torch.float64]),
    group=st.integers(-1, 9),
    quantized=st.sampled_from([E4M3, torch.float8_e5m2, torch.int8]),
    step=st.sampled_from([1, 2]),
)
def test_fake_and_real_quantisations_get_one_verdict(
    name: str,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    scale: tuple[int, ...],
    scale_dtype: torch.dtype,
    group: int,
    quantized: torch.dtype,
    step: int,
) -> None:
    """What the compiled module judges on real tensors is what is written for fake ones, over drawn calls."""
    x = torch.ones(*shape[:-1], shape[-1] * step)[..., ::step].to(dtype) if shape else torch.ones(()).to(dtype)
    given_scale = torch.ones(scale, dtype=scale_dtype)
    by_name = {
        "x": x,
        "x_residual": x.clone(),
        "weight": None,
        "scale": given_scale,
        "scale_ub": given_scale,
        "epsilon": 1e-6,
        "per_token": True,
        "group_size": group,
        "column_major_scales": False,
        "use_ue8m0": False,
        "dtype": quantized,
    }
    args = [by_name[parameter] for parameter in getattr(ops, name).declaration.signature.names]
    real = getattr(quant_predicates, name)(*args)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
        assert getattr(quant_predicates, name)(*fakes) is real
