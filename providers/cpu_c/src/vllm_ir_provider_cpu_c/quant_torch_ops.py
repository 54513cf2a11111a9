"""Quantisation as torch ops, for whoever traces: six of them serve all quantised ops, by what is quantised and how.

They stand beside `torch_ops`, whose rules hold here, too: eager calls do not come here, and an op whose name ends in an
underscore writes the sum to the residual.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from vllm_ir_provider_cpu_c.library import native
from vllm_ir_provider_cpu_c.torch_ops import DONATED, NAMESPACE, dense, settle

PLAIN, NORM, ADD_NORM, GATED = range(4)
"""What is quantised: rows as they are, normalised, added and normalised, or gated; as in `csrc/abi.h`."""

GIVEN, _CHANNEL, TOKEN, TENSOR, GROUP = range(5)
"""Where a scale comes from; that there is one for each channel the kernel sees for itself."""

QUANTIZED: Final = {torch.float8_e4m3fn: 0, torch.float8_e4m3fnuz: 1, torch.float8_e5m2: 2}
"""The 8-bit dtypes by the number that the kernels have for them."""

_ADDED: Final = "Tensor? weight, Tensor? scale, float epsilon"


def call(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    source: int,
    scaling: int,
    dtype: torch.dtype,
    *,
    group_size: int = 0,
    column_major: bool = False,
    power_of_two: bool = False,
    epsilon: float = 0.0,
    donated: bool = False,
) -> tuple[object, ...]:
    """Return the arguments of the compiled module's `quant` and `try_quant`, by position."""
    quantized = QUANTIZED[dtype]
    options = (group_size, column_major, power_of_two, epsilon, donated, dtype, torch.float32)
    return (x, residual, weight, scale, source, scaling, quantized, *options)


def _rows(x: Tensor, source: int) -> list[int]:
    """Return the sizes of what is quantised."""
    return [*x.shape[:-1], x.shape[-1] // 2] if source == GATED else list(x.shape)


def _like(x: Tensor, source: int, dtype: torch.dtype) -> Tensor:
    """Return what quantised values are like."""
    return x.new_empty(_rows(x, source), dtype=dtype)


def _scales_like(x: Tensor, source: int, scaling: int, group_size: int = 0, *, column_major: bool = False) -> Tensor:
    """Return what scales are like."""
    *front, last = _rows(x, source)
    if scaling == TENSOR:
        return x.new_empty((1,), dtype=torch.float32)
    groups = last // group_size if scaling == GROUP else 1
    if not column_major or not front:
        return x.new_empty((*front, groups), dtype=torch.float32)
    scales = x.new_empty((groups, *front), dtype=torch.float32)
    return scales.permute(*range(1, len(front) + 1), 0)


@torch.library.custom_op(
    f"{NAMESPACE}::quant",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor x, Tensor? weight, Tensor scale, int source, float epsilon, ScalarType dtype) -> Tensor",
)
def quant(x: Tensor, weight: Tensor | None, scale: Tensor, source: int, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return rows over a given scale."""
    found: Tensor = native.quant(*call(x, None, weight, scale, source, GIVEN, dtype, epsilon=epsilon))
    return found


@quant.register_fake
def _(x: Tensor, weight: Tensor | None, scale: Tensor, source: int, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return what the result is like."""
    del weight, scale, epsilon
    return _like(x, source, dtype)


@torch.library.custom_op(
    f"{NAMESPACE}::quant_scaled",
    mutates_args=(),
    device_types="cpu",
    schema=(
        "(Tensor x, Tensor? weight, Tensor? bound, int source, int scaling, SymInt group_size, bool column_major,"
        " bool power_of_two, float epsilon, ScalarType dtype) -> (Tensor, Tensor)"
    ),
)
def quant_scaled(
    x: Tensor,
    weight: Tensor | None,
    bound: Tensor | None,
    source: int,
    scaling: int,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    epsilon: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return rows over scales that are found, and the scales."""
    arguments = call(
        x,
        None,
        weight,
        bound,
        source,
        scaling,
        dtype,
        group_size=group_size,
        column_major=column_major,
        power_of_two=power_of_two,
        epsilon=epsilon,
    )
    found: tuple[Tensor, Tensor] = native.quant(*arguments)
    return found


@quant_scaled.register_fake
def _(
    x: Tensor,
    weight: Tensor | None,
    bound: Tensor | None,
    source: int,
    scaling: int,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    epsilon: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del weight, bound, power_of_two, epsilon
    scales = _scales_like(x, source, scaling, group_size, column_major=column_major)
    return _like(x, source, dtype), scales


@torch.library.custom_op(
    f"{NAMESPACE}::add_quant",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor x_residual, {_ADDED}, ScalarType dtype) -> (Tensor, Tensor)",
)
def add_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor | None, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum over a given scale, and the sum."""
    found: tuple[Tensor, Tensor] = native.quant(
        *call(x, x_residual, weight, scale, ADD_NORM, GIVEN, dtype, epsilon=epsilon)
    )
    return found


@add_quant.register_fake
def _(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor | None, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del x_residual, weight, scale, epsilon
    return _like(x, ADD_NORM, dtype), x.new_empty(x.shape)


@torch.library.custom_op(
    f"{NAMESPACE}::add_quant_",
    mutates_args=("x_residual",),
    device_types="cpu",
    schema=f"(Tensor x, Tensor(a!) x_residual, {_ADDED}, ScalarType dtype) -> Tensor",
)
def add_quant_(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor | None, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Return the normalised sum over a given scale, and write the sum to x_residual."""
    arguments = call(x, x_residual, weight, scale, ADD_NORM, GIVEN, dtype, epsilon=epsilon, donated=DONATED)
    found: tuple[Tensor, Tensor] = native.quant(*arguments)
    settle((x_residual,), found[1:])
    return found[0]


@add_quant_.register_fake
def _(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor | None, epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Return what the result is like."""
    del x_residual, weight, scale, epsilon
    return _like(x, ADD_NORM, dtype)


@torch.library.custom_op(
    f"{NAMESPACE}::add_quant_scaled",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor x_residual, {_ADDED}, int scaling, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
)
def add_quant_scaled(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    epsilon: float,
    scaling: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum over scales that are found, the scales, and the sum."""
    found: tuple[Tensor, Tensor, Tensor] = native.quant(
        *call(x, x_residual, weight, scale, ADD_NORM, scaling, dtype, epsilon=epsilon)
    )
    return found


@add_quant_scaled.register_fake
def _(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    epsilon: float,
    scaling: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the results are like."""
    del x_residual, weight, scale, epsilon
    return _like(x, ADD_NORM, dtype), _scales_like(x, ADD_NORM, scaling), x.new_empty(x.shape)


@torch.library.custom_op(
    f"{NAMESPACE}::add_quant_scaled_",
    mutates_args=("x_residual",),
    device_types="cpu",
    schema=f"(Tensor x, Tensor(a!) x_residual, {_ADDED}, int scaling, ScalarType dtype) -> (Tensor, Tensor)",
)
def add_quant_scaled_(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    epsilon: float,
    scaling: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum over scales that are found, and the scales; write the sum to x_residual."""
    arguments = call(x, x_residual, weight, scale, ADD_NORM, scaling, dtype, epsilon=epsilon, donated=DONATED)
    found: tuple[Tensor, Tensor, Tensor] = native.quant(*arguments)
    settle((x_residual,), found[2:])
    return found[0], found[1]


@add_quant_scaled_.register_fake
def _(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor | None,
    epsilon: float,
    scaling: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return what the results are like."""
    del x_residual, weight, scale, epsilon
    return _like(x, ADD_NORM, dtype), _scales_like(x, ADD_NORM, scaling)


def donating_add_quant(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum over a given scale, and the sum in x_residual where it is contiguous."""
    if not (dense(x) and dense(x_residual)):
        functional: tuple[Tensor, Tensor] = add_quant(x, x_residual, weight, scale, epsilon, dtype)
        return functional
    quantized: Tensor = add_quant_(x, x_residual, weight, scale, epsilon, dtype)
    return quantized, x_residual


def donating_add_quant_scaled(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    bound: Tensor | None,
    epsilon: float,
    scaling: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised sum over scales that are found, the scales, and the sum as `donating_add_quant` does."""
    if not (dense(x) and dense(x_residual)):
        functional: tuple[Tensor, Tensor, Tensor] = add_quant_scaled(
            x, x_residual, weight, bound, epsilon, scaling, dtype
        )
        return functional
    quantized, scales = add_quant_scaled_(x, x_residual, weight, bound, epsilon, scaling, dtype)
    return quantized, scales, x_residual
