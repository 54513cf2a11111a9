"""The quantised implementations: as those of `kernels`, a call goes into the compiled module, or is one torch op.

What is quantised is rounded to x's dtype first, as the unquantised op returns it, so a fused call gives the bits of its
parts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from vllm_ir import implements

from vllm_ir_provider_cpu_c import quant_predicates as predicates
from vllm_ir_provider_cpu_c import quantization, torch_ops
from vllm_ir_provider_cpu_c.kernels import DONATED, KEPT, PROVIDER
from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.quantization import GATED, PLAIN


@implements("static_quant_fp8", provider=PROVIDER, supports_args=predicates.static_quant_fp8, batch_invariant=True)
def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return x [..., hidden_size], over a scale of one value or of one per element of a row, as new 8-bit floats."""
    if not is_dynamo_compiling():
        done: Tensor | None = native.try_quant(*quantization.static(x, scale, dtype, PLAIN))
        if done is not None:
            return done
    traced: Tensor = torch_ops.static_quant_fp8(x, scale, dtype)
    return traced


@implements("dynamic_quant_fp8", provider=PROVIDER, supports_args=predicates.dynamic_quant_fp8)
def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return x [..., hidden_size] as new 8-bit floats, and the scales of its rows or of all of it."""
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(
            *quantization.dynamic(x, per_token, scale_ub, dtype, PLAIN)
        )
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return traced


@implements(
    "dynamic_group_quant_fp8", provider=PROVIDER, supports_args=predicates.dynamic_group_quant_fp8, batch_invariant=True
)
def dynamic_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return x [..., hidden_size] as new 8-bit floats, and the scales of the groups of its rows."""
    arguments = (x, group_size, column_major_scales, use_ue8m0, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(*quantization.groups(*arguments, PLAIN))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.dynamic_group_quant_fp8(*arguments)
    return traced


@implements(
    "rms_norm_static_quant_fp8",
    provider=PROVIDER,
    supports_args=predicates.rms_norm_static_quant_fp8,
    batch_invariant=True,
)
def rms_norm_static_quant_fp8(
    x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype = torch.float8_e4m3fn
) -> Tensor:
    """Return normalised rows of x [..., hidden_size] over a given scale as new 8-bit floats."""
    if not is_dynamo_compiling():
        done: Tensor | None = native.try_quant(*quantization.norm_static(x, weight, scale, epsilon, dtype))
        if done is not None:
            return done
    traced: Tensor = torch_ops.rms_norm_static_quant_fp8(x, weight, scale, epsilon, dtype)
    return traced


@implements("rms_norm_dynamic_quant_fp8", provider=PROVIDER, supports_args=predicates.rms_norm_dynamic_quant_fp8)
def rms_norm_dynamic_quant_fp8(
    x: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool = True,
    scale_ub: Tensor | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return normalised rows of x [..., hidden_size] as new 8-bit floats, and the scales of the rows or of all."""
    arguments = (x, weight, epsilon, per_token, scale_ub, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(*quantization.norm_dynamic(*arguments))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.rms_norm_dynamic_quant_fp8(*arguments)
    return traced


@implements(
    "silu_and_mul_static_quant_fp8",
    provider=PROVIDER,
    supports_args=predicates.silu_and_mul_static_quant_fp8,
    batch_invariant=True,
)
def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return silu(gate) * up of rows [..., 2 * size] over a given scale as new 8-bit floats."""
    if not is_dynamo_compiling():
        done: Tensor | None = native.try_quant(*quantization.static(x, scale, dtype, GATED))
        if done is not None:
            return done
    traced: Tensor = torch_ops.silu_and_mul_static_quant_fp8(x, scale, dtype)
    return traced


@implements(
    "silu_and_mul_dynamic_quant_fp8", provider=PROVIDER, supports_args=predicates.silu_and_mul_dynamic_quant_fp8
)
def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up of rows [..., 2 * size] as new 8-bit floats, and the scales of the rows or of all."""
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(
            *quantization.dynamic(x, per_token, scale_ub, dtype, GATED)
        )
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.silu_and_mul_dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return traced


@implements(
    "silu_and_mul_group_quant_fp8",
    provider=PROVIDER,
    supports_args=predicates.silu_and_mul_group_quant_fp8,
    batch_invariant=True,
)
def silu_and_mul_group_quant_fp8(
    x: Tensor,
    group_size: int,
    column_major_scales: bool = False,
    use_ue8m0: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up of rows [..., 2 * size] as new 8-bit floats, and the scales of the groups of the rows."""
    arguments = (x, group_size, column_major_scales, use_ue8m0, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(*quantization.groups(*arguments, GATED))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.silu_and_mul_group_quant_fp8(*arguments)
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
    arguments = (x, x_residual, weight, scale, epsilon, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(*quantization.sum_static(*arguments, KEPT))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm_static_quant_fp8(*arguments)
    return traced


@implements(
    "fused_add_rms_norm_static_quant_fp8",
    provider=PROVIDER,
    supports_args=predicates.fused_add_rms_norm_static_quant_fp8,
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

    x is left as it is. A residual that is not contiguous, or shares memory with x, is left alone, too, and the sum is a
    new tensor.
    """
    arguments = (x, x_residual, weight, scale, epsilon, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(*quantization.sum_static(*arguments, DONATED))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm_static_quant_fp8.donating(*arguments)
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
    """Return the normalised sum of x and a residual, its scales, and the sum; no input is written."""
    arguments = (x, x_residual, weight, epsilon, per_token, scale_ub, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor, Tensor] | None = native.try_quant(*quantization.sum_dynamic(*arguments, KEPT))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor, Tensor] = torch_ops.fused_add_rms_norm_dynamic_quant_fp8(*arguments)
    return traced


@implements(
    "fused_add_rms_norm_dynamic_quant_fp8",
    provider=PROVIDER,
    supports_args=predicates.fused_add_rms_norm_dynamic_quant_fp8,
    inplace=True,
    functional=functional_fused_add_rms_norm_dynamic_quant_fp8,
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
    """Return the normalised sum of x and a residual, its scales, and the sum in the residual's memory.

    What is left alone is told at `fused_add_rms_norm_static_quant_fp8`.
    """
    arguments = (x, x_residual, weight, epsilon, per_token, scale_ub, dtype)
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor, Tensor] | None = native.try_quant(*quantization.sum_dynamic(*arguments, DONATED))
        if done is not None:
            return done
    traced: tuple[Tensor, Tensor, Tensor] = torch_ops.fused_add_rms_norm_dynamic_quant_fp8.donating(*arguments)
    return traced
