"""Fused ops have the bits of their parts' natives, one after the other, on every layout; an expansion has native's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

EPSILON = 1e-5
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
FUSED = tuple(name for name in ops.__all__ if getattr(ops, name).declaration.parts)
SCALE = torch.tensor([0.013])
BOUND = torch.tensor([1.5])


def native(name: str) -> Callable[..., Any]:
    """Return an op's native function."""
    found: Callable[..., Any] = getattr(ops, name).declaration.native
    return found


def weights(size: int, dtype: torch.dtype) -> list[Tensor | None]:
    """Return no weight, one of the rows' dtype, and one each of a narrower and a wider one."""
    return [None, *(torch.randn(size).to(d) for d in dict.fromkeys((dtype, torch.bfloat16, torch.float64)))]


def raw(results: Any) -> list[Tensor]:
    """Return results as bytes, every NaN of a kind as the same."""
    made = results if isinstance(results, (tuple, list)) else [results]
    plain = [torch.where(x.isnan(), torch.full_like(x.float(), float("nan")).to(x.dtype), x) for x in made]
    return [x.contiguous().view(torch.uint8) for x in plain]


def same(got: Any, wanted: Any) -> None:
    """Fail unless results are of one dtype, shape and strides, and equal bit for bit."""
    mine, theirs = (list(r) if isinstance(r, (tuple, list)) else [r] for r in (got, wanted))
    assert [(x.dtype, x.shape, x.stride()) for x in mine] == [(x.dtype, x.shape, x.stride()) for x in theirs]
    assert all(map(torch.equal, raw(got), raw(wanted)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("quantized", FP8, ids=str)
def test_norms(dtype: torch.dtype, quantized: torch.dtype, lay: Any, sound: Any) -> None:
    """A norm that ends in 8 bits is the norm's native, rounded to x's dtype, then the quantisation's."""
    x, r = lay(torch.randn(4, 64).to(dtype)), lay(torch.randn(4, 64).to(dtype))
    for weight in weights(64, dtype):
        alone = native("rms_norm")(x, weight, EPSILON)
        summed, total = native("fused_add_rms_norm")(x, r, weight, EPSILON)
        assert alone.dtype == summed.dtype == total.dtype == dtype
        got = ops.rms_norm_static_quant_fp8(x, weight, SCALE, EPSILON, quantized)
        same(got, native("static_quant_fp8")(alone, SCALE, quantized))
        got = ops.fused_add_rms_norm_static_quant_fp8(x, r, weight, SCALE, EPSILON, quantized)
        same(got, (native("static_quant_fp8")(summed, SCALE, quantized), total))
        sound(got, [x, r])
        for per_token, bound in ((True, None), (True, BOUND), (False, None)):
            got = ops.rms_norm_dynamic_quant_fp8(x, weight, EPSILON, per_token, bound, quantized)
            same(got, native("dynamic_quant_fp8")(alone, per_token, bound, quantized))
            got = ops.fused_add_rms_norm_dynamic_quant_fp8(x, r, weight, EPSILON, per_token, bound, quantized)
            same(got, (*native("dynamic_quant_fp8")(summed, per_token, bound, quantized), total))
            sound(got, [x, r])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("quantized", FP8, ids=str)
def test_gates(dtype: torch.dtype, quantized: torch.dtype, lay: Any) -> None:
    """A gated activation that ends in 8 bits is its native, rounded to x's dtype, then the quantisation's."""
    x = lay(torch.randn(4, 2 * 64).to(dtype))
    gated = native("silu_and_mul")(x)
    got = ops.silu_and_mul_static_quant_fp8(x, SCALE, quantized)
    same(got, native("static_quant_fp8")(gated, SCALE, quantized))
    for per_token, bound in ((True, None), (True, BOUND), (False, None)):
        got = ops.silu_and_mul_dynamic_quant_fp8(x, per_token, bound, quantized)
        same(got, native("dynamic_quant_fp8")(gated, per_token, bound, quantized))
    for size, columns, powers in ((16, False, False), (32, True, False), (64, True, True)):
        got = ops.silu_and_mul_group_quant_fp8(x, size, columns, powers, quantized)
        same(got, native("dynamic_group_quant_fp8")(gated, size, columns, powers, quantized))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads_apart", [False, True], ids=["flat", "heads apart"])
@pytest.mark.parametrize("neox", [False, True], ids=["gptj", "neox"])
def test_heads(dtype: torch.dtype, heads_apart: bool, neox: bool, lay: Any, sound: Any) -> None:
    """Each head is a row of the norm, rounded to the dtype of query and key, and then turned."""
    positions, _, _, head, rotary, angles, _ = ops.rotary_embedding.generate_inputs(num_tokens=5)
    shapes = ((5, 4, head), (5, 2, head)) if heads_apart else ((5, 4 * head), (5, 2 * head))
    query, key = (lay(torch.randn(shape).to(dtype)) for shape in shapes)
    for weight in weights(head, dtype):
        other = None if weight is None else weight * 2
        normed = [
            native("rms_norm")(x.reshape(5, -1, head), each, EPSILON).reshape(x.shape)
            for x, each in ((query, weight), (key, other))
        ]
        got = ops.fused_qk_norm_rope(positions, query, key, weight, other, EPSILON, head, rotary // 2 * 2, angles, neox)
        same(got, native("rotary_embedding")(positions, *normed, head, rotary // 2 * 2, angles, neox))
        sound(got, [query, key])


@pytest.mark.parametrize("dtype", [*DTYPES, *FP8], ids=str)
@pytest.mark.parametrize("size", [None, 24])
def test_the_expansion_of_the_fused_add(dtype: torch.dtype, size: int | None, lay: Any) -> None:
    """The norm of the sum in float32, cast once more, has native's bits whatever dtype the weight has."""
    x, r = (lay((torch.randn(64, 48) * 3).to(dtype)) for _ in range(2))
    op: Any = ops.fused_add_rms_norm
    composition = op.declaration.composition
    expansion = composition.over(composition.natives(), "expansion")
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for weight in (None, *(torch.randn(48, dtype=torch.float64).to(kind) for kind in kinds)):
        same(expansion(x, r, weight, EPSILON, size), op.declaration.native(x, r, weight, EPSILON, size))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_unfused_is_native_where_the_parts_are(name: str, num_tokens: int) -> None:
    """Run in parts that native runs, each op has native's bits, and its inputs stay unless they are donated."""
    op: Any = getattr(ops, name)
    for dtype in DTYPES[:3]:
        arguments = op.generate_inputs(num_tokens=num_tokens, dtype=dtype)
        kept = [value.clone() if isinstance(value, Tensor) else value for value in arguments]
        wanted = op.declaration.native(*arguments)
        with op.set_priority("unfused"):
            same(op(*arguments), wanted)
            for value, before in zip(arguments, kept, strict=True):
                assert not isinstance(value, Tensor) or torch.equal(value, before)
            if op.allow_inplace:
                same(op.maybe_inplace(*arguments), wanted)


@pytest.mark.parametrize("name", FUSED)
def test_the_meaning_is_documented_as_callers_see_it(name: str) -> None:
    """Neither signature nor help of an op shows the parts that its meaning takes."""
    op: Any = getattr(ops, name)
    assert "parts" not in op.declaration.signature.names
    assert "parts:" not in (op.__doc__ or "")
    assert [part.name for part in op.declaration.parts] == list(dict.fromkeys(p.name for p in op.declaration.parts))
