"""The implementations of norms that end in 8-bit floating point; see `quant_kernels`.

Of what is donated to the fused ones x is never written, and the residual gets the sum where it is contiguous and shares
no memory with what is read.
"""

from __future__ import annotations

import torch
from torch import Tensor
from vllm_ir import implements

from vllm_ir_provider_vllm_c import quant_calls, quant_predicates, torch_ops
from vllm_ir_provider_vllm_c.calls import DONATED, KEPT
from vllm_ir_provider_vllm_c.kernels import PROVIDER, SUPPORTED, plain


@implements(
    "rms_norm_static_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.rms_norm_static_quant_fp8,
    batch_invariant=True,
)
def rms_norm_static_quant_fp8(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, over a given scale.

    Args:
        x: [..., hidden_size].
        weight: [hidden_size] of x's dtype or float32, or None.
        scale: float32, one value.
        epsilon: added to the mean of squares.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x):
        return quant_calls.norm_static(x, weight, scale, epsilon, dtype)
    traced: Tensor = torch_ops.rms_norm_static_quant_fp8(x, weight, scale, epsilon, dtype)
    return traced


@implements(
    "rms_norm_dynamic_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.rms_norm_dynamic_quant_fp8,
    batch_invariant=True,
)
def rms_norm_dynamic_quant_fp8(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return x over the root mean square of its rows, times the weight, over scales that are found, and these.

    Args:
        x: [..., hidden_size].
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        per_token: one scale for each row; otherwise one for all, in three launches.
        scale_ub: float32, one value: what the largest magnitude counts for at most.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x):
        return quant_calls.norm_dynamic(x, weight, epsilon, per_token, scale_ub, dtype)
    traced: tuple[Tensor, Tensor] = torch_ops.rms_norm_dynamic_quant_fp8(x, weight, epsilon, per_token, scale_ub, dtype)
    return traced


def functional_fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual over a given scale, and the sum; no input is written."""
    if plain(x, x_residual):
        return quant_calls.fused_norm_static(x, x_residual, weight, scale, epsilon, dtype, donated=KEPT)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm_static_quant_fp8(
        x, x_residual, weight, scale, epsilon, dtype
    )
    return traced


@implements(
    "fused_add_rms_norm_static_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.fused_add_rms_norm_static_quant_fp8,
    inplace=True,
    functional=functional_fused_add_rms_norm_static_quant_fp8,
    batch_invariant=True,
)
def fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual over a given scale, and the sum in the residual's memory.

    Args:
        x: [..., hidden_size].
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        scale: float32, one value.
        epsilon: added to the mean of squares.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x, x_residual):
        return quant_calls.fused_norm_static(x, x_residual, weight, scale, epsilon, dtype, donated=DONATED)
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm_static_quant_fp8.donating(
        x, x_residual, weight, scale, epsilon, dtype
    )
    return traced


def functional_fused_add_rms_norm_dynamic_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum of x and a residual over scales that are found, these, and the sum; none is written."""
    if plain(x, x_residual):
        return quant_calls.fused_norm_dynamic(x, x_residual, weight, epsilon, per_token, scale_ub, dtype, donated=KEPT)
    traced: tuple[Tensor, Tensor, Tensor] = torch_ops.fused_add_rms_norm_dynamic_quant_fp8(
        x, x_residual, weight, epsilon, per_token, scale_ub, dtype
    )
    return traced


@implements(
    "fused_add_rms_norm_dynamic_quant_fp8",
    provider=PROVIDER,
    supported=SUPPORTED,
    supports_args=quant_predicates.fused_add_rms_norm_dynamic_quant_fp8,
    inplace=True,
    functional=functional_fused_add_rms_norm_dynamic_quant_fp8,
    batch_invariant=True,
)
def fused_add_rms_norm_dynamic_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum of x and a residual over scales that are found, these, and the sum in the residual's.

    Args:
        x: [..., hidden_size].
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        per_token: one scale for each row; otherwise one for all, in three launches.
        scale_ub: float32, one value: what the largest magnitude counts for at most.
        dtype: float8_e4m3fn or float8_e5m2.
    """
    if plain(x, x_residual):
        return quant_calls.fused_norm_dynamic(
            x, x_residual, weight, epsilon, per_token, scale_ub, dtype, donated=DONATED
        )
    traced: tuple[Tensor, Tensor, Tensor] = torch_ops.fused_add_rms_norm_dynamic_quant_fp8.donating(
        x, x_residual, weight, epsilon, per_token, scale_ub, dtype
    )
    return traced
