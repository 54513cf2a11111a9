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
from vllm_ir_provider_cpu_c import quant_torch_ops as torch_ops
from vllm_ir_provider_cpu_c.kernels import PROVIDER
from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.quant_torch_ops import ADD_NORM, GATED, GIVEN, GROUP, NORM, PLAIN, TENSOR, TOKEN, call
from vllm_ir_provider_cpu_c.torch_ops import DONATED, KEPT


def _given(x: Tensor, weight: Tensor | None, scale: Tensor, source: int, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return rows over a given scale."""
    if not is_dynamo_compiling():
        done: Tensor | None = native.try_quant(*call(x, None, weight, scale, source, GIVEN, dtype, epsilon=epsilon))
        if done is not None:
            return done
    quantized: Tensor = torch_ops.quant(x, weight, scale, source, epsilon, dtype)
    return quantized


def _found(
    x: Tensor,
    weight: Tensor | None,
    bound: Tensor | None,
    source: int,
    per_token: bool,
    epsilon: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return rows over scales that are found for each of them or for all, and the scales."""
    scaling = TOKEN if per_token else TENSOR
    if not is_dynamo_compiling():
        done: tuple[Tensor, Tensor] | None = native.try_quant(
            *call(x, None, weight, bound, source, scaling, dtype, epsilon=epsilon)
        )
        if done is not None:
            return done
    results: tuple[Tensor, Tensor] = torch_ops.quant_scaled(
        x, weight, bound, source, scaling, 0, column_major=False, power_of_two=False, epsilon=epsilon, dtype=dtype
    )
    return results


def _grouped(
    x: Tensor,
    source: int,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return rows over a scale for each of their groups, and the scales."""
    if not is_dynamo_compiling():
        arguments = call(
            x,
            None,
            None,
            None,
            source,
            GROUP,
            dtype,
            group_size=group_size,
            column_major=column_major,
            power_of_two=power_of_two,
        )
        done: tuple[Tensor, Tensor] | None = native.try_quant(*arguments)
        if done is not None:
            return done
    results: tuple[Tensor, Tensor] = torch_ops.quant_scaled(
        x, None, None, source, GROUP, group_size, column_major, power_of_two, 0.0, dtype
    )
    return results


@implements("static_quant_fp8", provider=PROVIDER, supports_args=predicates.static_quant_fp8, batch_invariant=True)
def static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return x [..., hidden_size], over a scale of one value or of one per element of a row, as new 8-bit floats."""
    return _given(x, None, scale, PLAIN, 0.0, dtype)


@implements("dynamic_quant_fp8", provider=PROVIDER, supports_args=predicates.dynamic_quant_fp8)
def dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return x [..., hidden_size] as new 8-bit floats, and the scales of its rows or of all of it."""
    return _found(x, None, scale_ub, PLAIN, per_token, 0.0, dtype)


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
    return _grouped(x, PLAIN, group_size, column_major_scales, use_ue8m0, dtype)


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
    return _given(x, weight, scale, NORM, epsilon, dtype)


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
    return _found(x, weight, scale_ub, NORM, per_token, epsilon, dtype)


@implements(
    "silu_and_mul_static_quant_fp8",
    provider=PROVIDER,
    supports_args=predicates.silu_and_mul_static_quant_fp8,
    batch_invariant=True,
)
def silu_and_mul_static_quant_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """Return silu(gate) * up of rows [..., 2 * size] over a given scale as new 8-bit floats."""
    return _given(x, None, scale, GATED, 0.0, dtype)


@implements(
    "silu_and_mul_dynamic_quant_fp8", provider=PROVIDER, supports_args=predicates.silu_and_mul_dynamic_quant_fp8
)
def silu_and_mul_dynamic_quant_fp8(
    x: Tensor, per_token: bool = True, scale_ub: Tensor | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Return silu(gate) * up of rows [..., 2 * size] as new 8-bit floats, and the scales of the rows or of all."""
    return _found(x, None, scale_ub, GATED, per_token, 0.0, dtype)


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
    return _grouped(x, GATED, group_size, column_major_scales, use_ue8m0, dtype)


def functional_fused_add_rms_norm_static_quant_fp8(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual over a given scale, and the sum; no input is written."""
    if not is_dynamo_compiling():
        arguments = call(x, x_residual, weight, scale, ADD_NORM, GIVEN, dtype, epsilon=epsilon, donated=KEPT)
        done: tuple[Tensor, Tensor] | None = native.try_quant(*arguments)
        if done is not None:
            return done
    results: tuple[Tensor, Tensor] = torch_ops.add_quant(x, x_residual, weight, scale, epsilon, dtype)
    return results


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
    if not is_dynamo_compiling():
        arguments = call(x, x_residual, weight, scale, ADD_NORM, GIVEN, dtype, epsilon=epsilon, donated=DONATED)
        done: tuple[Tensor, Tensor] | None = native.try_quant(*arguments)
        if done is not None:
            return done
    return torch_ops.donating_add_quant(x, x_residual, weight, scale, epsilon, dtype)


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
    scaling = TOKEN if per_token else TENSOR
    if not is_dynamo_compiling():
        arguments = call(x, x_residual, weight, scale_ub, ADD_NORM, scaling, dtype, epsilon=epsilon, donated=KEPT)
        done: tuple[Tensor, Tensor, Tensor] | None = native.try_quant(*arguments)
        if done is not None:
            return done
    results: tuple[Tensor, Tensor, Tensor] = torch_ops.add_quant_scaled(
        x, x_residual, weight, scale_ub, epsilon, scaling, dtype
    )
    return results


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
    scaling = TOKEN if per_token else TENSOR
    if not is_dynamo_compiling():
        arguments = call(x, x_residual, weight, scale_ub, ADD_NORM, scaling, dtype, epsilon=epsilon, donated=DONATED)
        done: tuple[Tensor, Tensor, Tensor] | None = native.try_quant(*arguments)
        if done is not None:
            return done
    return torch_ops.donating_add_quant_scaled(x, x_residual, weight, scale_ub, epsilon, scaling, dtype)
