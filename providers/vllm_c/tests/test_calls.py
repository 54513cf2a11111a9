"""Where results go, and how many launches a call has; the launches run on this CPU, from the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_vllm_c import calls, kernels, norm_quant_kernels
from vllm_ir_provider_vllm_c.geometry import ROTARY

if TYPE_CHECKING:
    from collections.abc import Callable

NEOX = True
FP8 = torch.float8_e4m3fn
HEADS = "fused_qk_norm_rope"
STATIC = "fused_add_rms_norm_static_quant_fp8"
DYNAMIC = "fused_add_rms_norm_dynamic_quant_fp8"
QUERY_HEADS, KEY_HEADS = 14, 30
"""Where a packed launch of the rotation says how many heads there are."""

pytestmark = pytest.mark.usefixtures("cpu")


def function(op: str) -> Callable[..., Any]:
    """Return what runs an op, in place where it may."""
    found = getattr(kernels if hasattr(kernels, op) else norm_quant_kernels, op)
    return getattr(found, "impl_fn", found)  # type: ignore[no-any-return]


def clones(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


def overlapping() -> dict[str, tuple[str, tuple[Any, ...]]]:
    """Return calls whose donated tensors share memory, with each other or with what is read beside them."""
    x, other, weight = torch.randn(70, 64), torch.randn(70, 64), torch.randn(64)
    numbers, cache, scale = torch.arange(70) % 8, torch.randn(8, 16), torch.tensor([0.02])
    last = x[13:21, 16:32]
    positive = torch.rand(70, 64) + 0.01
    inside = other.view(torch.int32)[:, 3].fill_(1)
    return {
        "x is the residual": ("fused_add_rms_norm", (x, x, weight, 1e-6)),
        "the residual begins in x": ("fused_add_rms_norm", (x[:32], x[31:63], weight, 1e-6)),
        "x begins in the residual": ("fused_add_rms_norm", (x[31:63], x[:32], weight, 1e-6)),
        "the weight is a row of x": ("fused_add_rms_norm", (x, other, x[0], 1e-6)),
        "the weight is a row of the residual": ("fused_add_rms_norm", (x, other, other[69], 1e-6)),
        "key is query": ("rotary_embedding", (numbers, x, x, 16, 16, cache, NEOX)),
        "angles are in query": ("rotary_embedding", (numbers, x, other, 16, 16, x[9:17, 48:], NEOX)),
        "angles are in key": ("rotary_embedding", (numbers, x, other, 16, 16, other[60:68, :16], NEOX)),
        "the last angles are in query": ("rotary_embedding", (numbers[:50], x[20:], other[:50], 16, 16, last, NEOX)),
        "positions are in query": ("rotary_embedding", (inside, other, x, 16, 16, cache, NEOX)),
        "positions are in key": ("rotary_embedding", (inside, x, other, 16, 16, cache, NEOX)),
        "heads of key are query's": (HEADS, (numbers, x, x, None, None, 1e-6, 16, 16, cache, NEOX)),
        "query's weight is in key": (HEADS, (numbers, x, other, other[69, :16], None, 1e-6, 16, 16, cache, NEOX)),
        "key's weight is in key": (HEADS, (numbers, x, other, None, other[5, 16:32], 1e-6, 16, 16, cache, NEOX)),
        "heads' angles are in query": (HEADS, (numbers, x, other, None, None, 1e-6, 16, 16, x[9:17, 48:], NEOX)),
        "heads' positions are in query": (HEADS, (inside, other, x, None, None, 1e-6, 16, 16, cache, NEOX)),
        "the quantised x is the residual": (STATIC, (x, x, weight, scale, 1e-6, FP8)),
        "the quantised residual begins in x": (DYNAMIC, (x[:32], x[31:63], weight, 1e-6, True, None, FP8)),
        "a quantised row's weight is of the residual": (STATIC, (x, other, other[69], scale, 1e-6, FP8)),
        "the scale is in the residual": (STATIC, (x, positive, weight, positive[5, :1], 1e-6, FP8)),
        "the bound is in the residual": (DYNAMIC, (x, other, weight, 1e-6, True, other[5, 5:6].fill_(1.5), FP8)),
    }


@pytest.mark.parametrize("name", overlapping())
def test_what_shares_memory_is_left_alone(name: str, matches: Callable[..., None]) -> None:
    """Blocks run in any order, so one would read what another has written; the results are new tensors."""
    op, args = overlapping()[name]
    before = clones(args)
    wanted = getattr(ops, op).impls["native"].impl_fn(*before)
    got = function(op)(*args)
    if FP8 in args:
        got, wanted = (tuple(each.float() for each in result) for result in (got, wanted))
    donated = [args[i] for i in getattr(ops, op).activation_indices]
    assert not any(one is given for one in got for given in donated)
    for one, other in zip(args, before, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
    if FP8 in args:
        assert all(torch.allclose(one, other, rtol=0.13) for one, other in zip(got, wanted, strict=True))
    else:
        matches(op, got, wanted)


def test_a_weight_that_is_written_meanwhile_gives_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above holds off: in place, all rows behind the first are multiplied by what that has become."""
    op, args = overlapping()["the weight is a row of x"]
    wanted = getattr(ops, op).impls["native"].impl_fn(*args)
    monkeypatch.setattr(calls, "apart", lambda *_: True)
    got = function(op)(*args)
    assert got[0] is args[0]
    assert not torch.allclose(got[0], wanted[0], rtol=0.1)


def test_a_donated_residual_gets_the_sum() -> None:
    """Of x nothing is written, since 8-bit results have no place in it; a residual out of line is left alone."""
    x, residual = torch.randn(70, 64), torch.randn(70, 64)
    kept, total = x.clone(), x + residual
    assert (
        norm_quant_kernels.fused_add_rms_norm_static_quant_fp8.impl_fn(x, residual, None, torch.tensor([0.02]), 1e-6)[1]
        is residual
    )
    assert torch.equal(residual, total)
    assert torch.equal(x, kept)
    apart = torch.randn(70, 128)[:, :64]
    before = apart.clone()
    assert norm_quant_kernels.fused_add_rms_norm_dynamic_quant_fp8.impl_fn(x, apart, None, 1e-6)[2] is not apart
    assert torch.equal(apart, before)


def test_neighbours_in_memory_are_written_in_place() -> None:
    """One tensor ends where the other begins, and the weight or the angles lie behind them: nothing is shared."""
    whole = torch.randn(210, 64)
    x, residual, weight = whole[:70], whole[70:140], whole[140]
    assert kernels.fused_add_rms_norm.impl_fn(x, residual, weight, 1e-6)[0] is x
    numbers = torch.arange(70) % 8
    assert kernels.rotary_embedding.impl_fn(numbers, residual, x, 16, 16, whole[140:148, :16], NEOX)[0] is residual


ONE_POSITION = {
    "heads in a dimension of their own": ((8, 16), (2, 16)),
    "five rows of them": ((5, 8, 16), (5, 2, 16)),
    "packed and not": ((5, 64), (3, 2, 16)),
    "one head, and many tokens": ((16,), (4, 64)),
    "no key": ((4, 16), (0, 16)),
    "as many rows": ((4, 64), (4, 16)),
    "one token of many heads": ((1, 8, 16), (1, 2, 16)),
}
TOGETHER = {"as many rows": (4, 4, 1), "one token of many heads": (1, 8, 2)}
"""Those that are one launch, with blocks, heads of query and heads of key."""


@pytest.mark.parametrize("turned", [16, 12])
@pytest.mark.parametrize("name", ONE_POSITION)
@pytest.mark.parametrize("op", ["rotary_embedding", "functional_rotary_embedding"])
def test_one_position_is_for_all_rows(op: str, name: str, turned: int, cpu: Any, matches: Callable[..., None]) -> None:
    """Query and key may then have rows as they like, each its own launch, with a block a row of its own."""
    query, key = (torch.randn(sizes) for sizes in ONE_POSITION[name])
    args = (torch.tensor([5]), query, key, 16, turned, torch.randn(8, turned), NEOX)
    wanted = ops.rotary_embedding.impls["native"].impl_fn(*args)
    given = clones(args)
    got = function(op)(*given)
    matches("rotary_embedding", got, wanted)
    assert [one is other for one, other in zip(got, given[1:3], strict=True)] == [op == "rotary_embedding"] * 2
    packed = [ROTARY.unpack(each.arguments) for each in cpu.launches]
    found = [(each.blocks, one[QUERY_HEADS], one[KEY_HEADS]) for each, one in zip(cpu.launches, packed, strict=True)]
    if name in TOGETHER:
        assert found == [TOGETHER[name]]
    else:
        rows = [x.numel() // x.shape[-1] for x in (query, key)]
        heads = [x.shape[-1] // 16 for x in (query, key)]
        assert found == [(number, each, 0) for number, each in zip(rows, heads, strict=True) if number]
