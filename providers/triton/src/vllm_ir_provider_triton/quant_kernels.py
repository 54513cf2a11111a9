"""The functions behind the quantising ops that do not normalise; declared in `declared`, called as in `kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from vllm_ir_provider_triton import quant_calls, torch_ops
from vllm_ir_provider_triton.kernels import plain
from vllm_ir_provider_triton.quant_calls import GATED, PLAIN


def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return x over a scale, quantised, as a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        scale: float32, one value or [hidden_size].
        dtype: what is written.
    """
    if plain(x, scale):
        return quant_calls.static_quant(x, scale, dtype, PLAIN)
    traced: Tensor = torch_ops.static_quant_fp8(x, scale, dtype)
    return traced


def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return silu(gate) * up over a scale, quantised, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        scale: float32, one value.
        dtype: what is written.
    """
    if plain(x, scale):
        return quant_calls.static_quant(x, scale, dtype, GATED)
    traced: Tensor = torch_ops.silu_and_mul_static_quant_fp8(x, scale, dtype)
    return traced


def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return rows of x, each over its own scale or all over one, quantised, and the scales, as new contiguous tensors.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        per_token: one scale for each row; otherwise one for the tensor.
        scale_ub: float32, one value: what the largest magnitude counts for at most.
        dtype: what is written.
    """
    if plain(x):
        return quant_calls.dynamic_quant(x, per_token, scale_ub, dtype, PLAIN)
    traced: tuple[Tensor, Tensor] = torch_ops.dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return traced


def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return rows of silu(gate) * up, quantised, each over its own scale or all over one, and the scales, all new.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        per_token: one scale for each row; otherwise one for the tensor.
        scale_ub: float32, one value: what the largest magnitude counts for at most.
        dtype: what is written.
    """
    if plain(x):
        return quant_calls.dynamic_quant(x, per_token, scale_ub, dtype, GATED)
    traced: tuple[Tensor, Tensor] = torch_ops.silu_and_mul_dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return traced


def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return groups of the elements of rows, each over its own scale, quantised, and the scales, as new tensors.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        group_size: elements of a group, of which a row has a whole number.
        column_major_scales: lay the scales of one group of all rows next to each other.
        use_ue8m0: round scales up to powers of two.
        dtype: what is written.
    """
    if plain(x):
        return quant_calls.group_quant(x, group_size, column_major_scales, use_ue8m0, dtype, PLAIN)
    traced: tuple[Tensor, Tensor] = torch_ops.dynamic_group_quant_fp8(
        x, group_size, column_major_scales, use_ue8m0, dtype
    )
    return traced


def silu_and_mul_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return groups of silu(gate) * up, each over its own scale, quantised, and the scales, as new tensors.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        group_size: elements of a group, of which half a row has a whole number.
        column_major_scales: lay the scales of one group of all rows next to each other.
        use_ue8m0: round scales up to powers of two.
        dtype: what is written.
    """
    if plain(x):
        return quant_calls.group_quant(x, group_size, column_major_scales, use_ue8m0, dtype, GATED)
    traced: tuple[Tensor, Tensor] = torch_ops.silu_and_mul_group_quant_fp8(
        x, group_size, column_major_scales, use_ue8m0, dtype
    )
    return traced
