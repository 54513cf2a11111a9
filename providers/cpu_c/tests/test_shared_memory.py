"""What is donated, and lies in memory that something else is read from, is left alone; results come in new memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_cpu_c import kernels, quant_kernels
from vllm_ir_provider_cpu_c.predicates import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Native = Callable[..., Any]
    Same = Callable[[Any, Any], None]
    Call = tuple[str, list[Any]]

ROWS, SIZE, HEAD = 64, 64, 16
EPSILON = 1e-6
FP8 = torch.float8_e4m3fn


def norms(dtype: torch.dtype) -> dict[str, Call]:
    """Return calls of norms after an addition, each with one argument out of what is written.

    That is x or the residual, and the residual alone where the norm is quantised.
    """
    found: dict[str, Call] = {}
    for home in (0, 1):
        for where, row in (("first", 0), ("last", ROWS - 1)):
            given = [torch.randn(ROWS, SIZE).to(dtype) for _ in range(2)]
            weight = given[home][row]
            suffix = f"{where} row of {'x' if home == 0 else 'residual'}"
            found[f"norm: weight, {suffix}"] = ("fused_add_rms_norm", [*given, weight, EPSILON])
            if home == 0:
                continue
            static, dynamic = "fused_add_rms_norm_static_quant_fp8", "fused_add_rms_norm_dynamic_quant_fp8"
            scale = torch.tensor([0.02])
            found[f"static: weight, {suffix}"] = (static, [*given, weight, scale, EPSILON, FP8])
            for per_token in (True, False):
                call = [*given, weight, EPSILON, per_token, None, FP8]
                found[f"dynamic: weight, {suffix}, {per_token}"] = (dynamic, call)
                inside = [each.clone() for each in given]
                bound = value_in(inside[home][row], 1.5)
                call = [*inside, None, EPSILON, per_token, bound, FP8]
                found[f"dynamic: bound, {suffix}, {per_token}"] = (dynamic, call)
            inside = [each.clone() for each in given]
            call = [*inside, None, value_in(inside[home][row], 0.02), EPSILON, FP8]
            found[f"static: scale, {suffix}"] = (static, call)
    return found


def value_in(row: Tensor, value: float) -> Tensor:
    """Write one float32 value over the first elements of a row, and return it where it lies."""
    one = row.view(torch.float32)[:1]
    one.fill_(value)
    return one


def turns(dtype: torch.dtype) -> dict[str, Call]:
    """Return calls of rotations, each with one argument out of query or out of key."""
    found: dict[str, Call] = {}
    for home in (0, 1):
        suffix = "query" if home == 0 else "key"
        given = [torch.randn(ROWS, SIZE).to(dtype) for _ in range(2)]
        cache = torch.randn(ROWS, HEAD)
        positions = torch.arange(ROWS)
        inside = [each.clone() for each in given]
        angles = inside[home].view(-1, HEAD)
        found[f"rotary: angles in {suffix}"] = ("rotary_embedding", [positions, *inside, HEAD, HEAD, angles, True])
        inside = [each.clone() for each in given]
        whole = inside[home].view(torch.int64).flatten()[-ROWS:]
        whole.copy_(positions)
        found[f"rotary: positions in {suffix}"] = ("rotary_embedding", [whole, *inside, HEAD, HEAD, cache, True])
        for weighted in (0, 1):
            inside = [each.clone() for each in given]
            weights = [torch.randn(HEAD).to(dtype), torch.randn(HEAD).to(dtype)]
            weights[weighted] = inside[home][0, HEAD : 2 * HEAD]
            call = [positions, *inside, *weights, EPSILON, HEAD, HEAD, cache, True]
            found[f"heads: weight {weighted} in {suffix}"] = ("fused_qk_norm_rope", call)
        inside = [each.clone() for each in given]
        call = [positions, *inside, None, None, EPSILON, HEAD, HEAD, inside[home].view(-1, HEAD), True]
        found[f"heads: angles in {suffix}"] = ("fused_qk_norm_rope", call)
    packed = torch.randn(2 * ROWS * SIZE).to(dtype)
    # Key reaches over the rows of query without being contiguous, so its size alone does not tell.
    apart = packed.view(ROWS, 2 * SIZE)[:, :SIZE], packed[ROWS * SIZE : 2 * ROWS * SIZE].view(ROWS, SIZE)
    for name, (query, key) in {"key": apart, "query": apart[::-1]}.items():
        call = [torch.arange(ROWS), query, key, HEAD, HEAD, torch.randn(ROWS, HEAD), True]
        found[f"rotary: {name} among rows of the other"] = ("rotary_embedding", call)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [norms, turns])
def test_what_else_is_read_stays(
    make: Callable[[torch.dtype], dict[str, Call]], dtype: torch.dtype, native: Native, same_bits: Same
) -> None:
    """Every argument in every donated tensor: native's bits, no input changed, by the function and through the op."""
    for name, (op, args) in make(dtype).items():
        before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        expected = native(op, *before)
        impl = getattr(kernels, op, None) or getattr(quant_kernels, op)
        same_bits(impl.impl_fn(*args), expected)
        with getattr(ops, op).set_priority("cpu_c"):
            same_bits(getattr(ops, op).maybe_inplace(*args), expected)
        for i, (arg, kept) in enumerate(zip(args, before, strict=True)):
            if isinstance(arg, torch.Tensor):
                assert torch.equal(arg.nan_to_num(), kept.nan_to_num()), f"{name}: argument {i} was written"


def test_neighbours_in_one_memory_are_written_where_they_lie() -> None:
    """Sharing a storage is not sharing memory: what lies beside a donated tensor keeps nobody from writing it."""
    memory = torch.randn(2 * ROWS + 1, SIZE)
    x, residual, weight = memory[:ROWS], memory[ROWS : 2 * ROWS], memory[2 * ROWS]
    out, total = kernels.fused_add_rms_norm.impl_fn(x, residual, weight, EPSILON)
    assert out is x
    assert total is residual
    one = torch.randn(3 * SIZE)
    query, key = one[:SIZE][None], one[SIZE : 2 * SIZE][None]
    cache = one[2 * SIZE : 2 * SIZE + HEAD][None]
    got = kernels.rotary_embedding.impl_fn(torch.tensor([0]), query, key, HEAD, HEAD, cache, True)  # noqa: FBT003 - an op's arguments are positional
    assert got[0] is query
    assert got[1] is key
