"""The implementations of ops that end in 8-bit floating point; calls go as those of `kernels` do.

A row of them is of float32, bfloat16 or float16 and lies anywhere, its elements are adjacent; results are contiguous.
Values are what the unquantised op returns, rounded as there, and then quantised.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm_ir import implements

from vllm_ir_provider_vllm_c import quant_calls, quant_predicates, torch_ops
from vllm_ir_provider_vllm_c.kernels import PROVIDER, SUPPORTED, plain


@implements(
    "static_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.static_quant_fp8,
    batch_invariant=True,
)
def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return x over a given scale.

    Args:
        x: [..., hidden_size].
        scale: float32, one value, or one for each element of a row.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x, scale):
        return quant_calls.static(x, scale, dtype)
    traced: Tensor = torch_ops.static_quant_fp8(x, scale, dtype)
    return traced


@implements(
    "silu_and_mul_static_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.silu_and_mul_static_quant_fp8,
    batch_invariant=True,
)
def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return silu(gate) * up over a given scale.

    Args:
        x: [..., 2 * size].
        scale: float32, one value.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x, scale):
        return quant_calls.static(x, scale, dtype, gated=True)
    traced: Tensor = torch_ops.silu_and_mul_static_quant_fp8(x, scale, dtype)
    return traced


@implements(
    "dynamic_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.dynamic_quant_fp8,
    batch_invariant=True,
)
def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return x over scales that are found, and these.

    Args:
        x: [..., hidden_size].
        per_token: one scale for each row; otherwise one for all, in three launches.
        scale_ub: float32, one value: what the largest magnitude counts for at most.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x):
        return quant_calls.dynamic(x, per_token, scale_ub, dtype)
    traced: tuple[Tensor, Tensor] = torch_ops.dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return traced


@implements(
    "silu_and_mul_dynamic_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.silu_and_mul_dynamic_quant_fp8,
    batch_invariant=True,
)
def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up over scales that are found, and these.

    Args:
        x: [..., 2 * size].
        per_token: one scale for each row; otherwise one for all, in three launches.
        scale_ub: float32, one value: what the largest magnitude counts for at most.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x):
        return quant_calls.dynamic(x, per_token, scale_ub, dtype, gated=True)
    traced: tuple[Tensor, Tensor] = torch_ops.silu_and_mul_dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return traced


@implements(
    "dynamic_group_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.dynamic_group_quant_fp8,
    batch_invariant=True,
)
def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return x over a scale for each group of a row, and these.

    Args:
        x: [..., hidden_size].
        group_size: elements of a group.
        column_major_scales: whether the scales of one group of all tokens are next to each other.
        use_ue8m0: whether scales are rounded up to a power of two.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x):
        return quant_calls.groups(x, group_size, column_major_scales, use_ue8m0, dtype)
    traced: tuple[Tensor, Tensor] = torch_ops.dynamic_group_quant_fp8(
        x, group_size, column_major_scales, use_ue8m0, dtype
    )
    return traced


@implements(
    "silu_and_mul_group_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.silu_and_mul_group_quant_fp8,
    batch_invariant=True,
)
def silu_and_mul_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up over a scale for each group of a row, and these.

    Args:
        x: [..., 2 * size].
        group_size: elements of a group of the product.
        column_major_scales: whether the scales of one group of all tokens are next to each other.
        use_ue8m0: whether scales are rounded up to a power of two.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x):
        return quant_calls.groups(x, group_size, column_major_scales, use_ue8m0, dtype, gated=True)
    traced: tuple[Tensor, Tensor] = torch_ops.silu_and_mul_group_quant_fp8(
        x, group_size, column_major_scales, use_ue8m0, dtype
    )
    return traced
