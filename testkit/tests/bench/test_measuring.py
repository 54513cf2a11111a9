"""Measuring contenders side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from vllm_ir import Unsupported, implements, ops
from vllm_ir_testkit.bench.measuring import CLONE, COMPILED, COPY, bench
from vllm_ir_testkit.bench.requests import Size

if TYPE_CHECKING:
    from vllm_ir_testkit import TestManager


def no_halves(x: Tensor) -> bool | Unsupported:
    """Refuse all but float32."""
    return x.dtype == torch.float32 or Unsupported("float32 only")


@implements("silu_and_mul", provider="right", supports_args=no_halves)
def right(x: Tensor) -> Tensor:
    """Return what native returns."""
    out: Tensor = ops.silu_and_mul.impls["native"].impl_fn(x)
    return out


@implements("silu_and_mul", provider="wrong")
def wrong(x: Tensor) -> Tensor:
    """Return half of x, which is fast."""
    return x[..., : x.shape[-1] // 2].contiguous()


@implements("fused_add_rms_norm", provider="right", inplace=True)
def inplace(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return results in the activations."""
    native = ops.fused_add_rms_norm.impls["native"].impl_fn
    out, total = native(x, x_residual, weight, epsilon, variance_size)
    return x.copy_(out), x_residual.copy_(total)


def test_everybody_runs_or_says_why_not(manager: TestManager) -> None:
    """A row each: right, wrong values, refused arguments, an op that is lacking."""
    manager.add(right, wrong)
    found = bench(
        [ops.silu_and_mul, ops.gelu_and_mul],
        ["native", "right", "wrong"],
        [Size(3, 64)],
        ["float32", "bfloat16"],
        blocks=1,
        compiled=False,
    )
    rows = {(row.op, row.dtype, row.contender): row for row in found.rows}
    assert len(rows) == 2 * 2 * 5
    assert rows["silu_and_mul", "float32", "right"].over_native is not None
    assert rows["silu_and_mul", "float32", "right"].note == ""
    assert rows["silu_and_mul", "bfloat16", "right"].note == "float32 only"
    assert "not native's values" in rows["silu_and_mul", "float32", "wrong"].note
    assert rows["gelu_and_mul", "float32", "right"].timing is None
    assert rows["gelu_and_mul", "float32", "right"].note == "has no gelu_and_mul"
    for contender in (COPY, CLONE):
        assert rows["gelu_and_mul", "float32", contender].timing is not None
    assert found.measured


def test_in_place_ops_are_timed_by_the_overload_that_hosts_call(manager: TestManager) -> None:
    """Donated inputs by default, the functional overload on request, and the same bytes either way."""
    manager.add(inplace)
    rows = [
        bench([ops.fused_add_rms_norm], ["right"], [Size(2, 64)], ["float32"], blocks=1, compiled=False, functional=f)
        for f in (False, True)
    ]
    donated, functional = (found.rows[0] for found in rows)
    assert (donated.overload, functional.overload) == ("maybe_inplace", "default")
    assert donated.bytes == functional.bytes == (4 * 2 * 64 + 64) * 4
    assert donated.note == ""


def test_compiled_native_is_a_contender(manager: TestManager) -> None:
    """Its ratio to itself is one."""
    del manager
    found = bench([ops.silu_and_mul], ["native"], [Size(2, 64)], ["float32"], blocks=1)
    compiled = next(row for row in found.rows if row.contender == COMPILED)
    assert compiled.over_compiled == 1.0 or compiled.note


def test_a_quantisation_is_timed_with_the_bytes_of_its_8_bit_results(manager: TestManager) -> None:
    """bfloat16 read, 8 bits and a scale for each row written; a kernel that rounds otherwise is shown as wrong."""

    @implements("dynamic_quant_fp8", provider="turned")
    def dynamic_quant_fp8(
        x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
    ) -> tuple[Tensor, Tensor]:
        """Quantise values of the other sign."""
        native = ops.dynamic_quant_fp8.declaration.native
        _, scale = native(x, per_token, scale_ub, dtype)
        return native(-x, per_token, scale_ub, dtype)[0], scale

    manager.add(dynamic_quant_fp8)
    asked = ["native", "turned"]
    found = bench([ops.dynamic_quant_fp8], asked, [Size(4, 64)], ["bfloat16"], blocks=1, compiled=False)
    rows = {row.contender: row for row in found.rows}
    assert rows["native"].bytes == 4 * 64 * 2 + 4 * 64 + 4 * 4
    assert rows["native"].note == ""
    assert "the op is exact" in rows["turned"].note
