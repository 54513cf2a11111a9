"""The kernels of `quant_calls` as torch ops, for whoever traces; see `torch_ops`.

Of what is donated only a residual can be written, since 8-bit results have no place in what they are made of. An op
with a trailing underscore writes it, and returns the other results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from vllm_ir_provider_vllm_c import quant_calls
from vllm_ir_provider_vllm_c.calls import DONATED, KEPT, dense
from vllm_ir_provider_vllm_c.torch_ops import NAMESPACE, like, settle

if TYPE_CHECKING:
    from collections.abc import Callable

_DYNAMIC: Final = "bool per_token, Tensor? scale_ub, ScalarType dtype"
_GROUPS: Final = "SymInt group_size, bool column_major_scales, bool use_ue8m0, ScalarType dtype"
_STATIC_NORM: Final = "Tensor? weight, Tensor scale, float epsilon, ScalarType dtype"
_DYNAMIC_NORM: Final = f"Tensor? weight, float epsilon, {_DYNAMIC}"


def _define(schema: str, run: Callable[..., Any], fake: Callable[..., Any], *written: str) -> Any:
    """Return a torch op for CUDA tensors.

    Args:
        schema: its name and schema.
        run: what runs it.
        fake: from the same arguments to what the results are like.
        written: the parameters that it writes.
    """
    name, parameters = schema.split("(", 1)
    define = torch.library.custom_op(
        f"{NAMESPACE}::{name}", mutates_args=written, device_types="cuda", schema=f"({parameters}"
    )
    made = define(run)
    made.register_fake(fake)
    return made


def _rows(x: Tensor, per_token: bool, dtype: torch.dtype, *, gated: bool = False) -> tuple[Tensor, Tensor]:
    """Return what quantised rows and their scales are like."""
    return quant_calls.quantized(x, dtype, gated=gated), quant_calls.row_scales(x, per_token=per_token)


def _groups(
    x: Tensor, group_size: int, column_major: bool, dtype: torch.dtype, *, gated: bool = False
) -> tuple[Tensor, Tensor]:
    """Return what rows quantised in groups and their scales are like."""
    scales = quant_calls.group_scales(x, group_size, gated=gated, column_major=column_major)
    return quant_calls.quantized(x, dtype, gated=gated), scales


static_quant_fp8 = _define(
    "static_quant_fp8(Tensor x, Tensor scale, ScalarType dtype) -> Tensor",
    quant_calls.static,
    lambda x, _, dtype: quant_calls.quantized(x, dtype),
)
silu_and_mul_static_quant_fp8 = _define(
    "silu_and_mul_static_quant_fp8(Tensor x, Tensor scale, ScalarType dtype) -> Tensor",
    lambda x, scale, dtype: quant_calls.static(x, scale, dtype, gated=True),
    lambda x, _, dtype: quant_calls.quantized(x, dtype, gated=True),
)
dynamic_quant_fp8 = _define(
    f"dynamic_quant_fp8(Tensor x, {_DYNAMIC}) -> (Tensor, Tensor)",
    quant_calls.dynamic,
    lambda x, per_token, _, dtype: _rows(x, per_token, dtype),
)
silu_and_mul_dynamic_quant_fp8 = _define(
    f"silu_and_mul_dynamic_quant_fp8(Tensor x, {_DYNAMIC}) -> (Tensor, Tensor)",
    lambda x, per_token, bound, dtype: quant_calls.dynamic(x, per_token, bound, dtype, gated=True),
    lambda x, per_token, _, dtype: _rows(x, per_token, dtype, gated=True),
)
dynamic_group_quant_fp8 = _define(
    f"dynamic_group_quant_fp8(Tensor x, {_GROUPS}) -> (Tensor, Tensor)",
    quant_calls.groups,
    lambda x, size, column_major, _, dtype: _groups(x, size, column_major, dtype),
)
silu_and_mul_group_quant_fp8 = _define(
    f"silu_and_mul_group_quant_fp8(Tensor x, {_GROUPS}) -> (Tensor, Tensor)",
    lambda x, size, column_major, ue8m0, dtype: quant_calls.groups(x, size, column_major, ue8m0, dtype, gated=True),
    lambda x, size, column_major, _, dtype: _groups(x, size, column_major, dtype, gated=True),
)
rms_norm_static_quant_fp8 = _define(
    f"rms_norm_static_quant_fp8(Tensor x, {_STATIC_NORM}) -> Tensor",
    quant_calls.norm_static,
    lambda x, weight, scale, epsilon, dtype: quant_calls.quantized(x, dtype),  # noqa: ARG005 - the op's arguments
)
rms_norm_dynamic_quant_fp8 = _define(
    f"rms_norm_dynamic_quant_fp8(Tensor x, {_DYNAMIC_NORM}) -> (Tensor, Tensor)",
    quant_calls.norm_dynamic,
    lambda x, weight, epsilon, per_token, bound, dtype: _rows(x, per_token, dtype),  # noqa: ARG005 - the op's arguments
)


def _static_sum(x: Tensor, x_residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return what a quantised norm of a sum, and the sum, are like."""
    return quant_calls.quantized(x, rest[-1]), like(x_residual)


def _dynamic_sum(x: Tensor, x_residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a quantised norm of a sum, its scales, and the sum, are like."""
    _, _, per_token, _, dtype = rest
    return (*_rows(x, per_token, dtype), like(x_residual))


fused_add_rms_norm_static_quant_fp8 = _define(
    f"fused_add_rms_norm_static_quant_fp8(Tensor x, Tensor x_residual, {_STATIC_NORM}) -> (Tensor, Tensor)",
    lambda *args: quant_calls.fused_norm_static(*args, donated=KEPT),
    _static_sum,
)
fused_add_rms_norm_dynamic_quant_fp8 = _define(
    f"fused_add_rms_norm_dynamic_quant_fp8(Tensor x, Tensor x_residual, {_DYNAMIC_NORM}) -> (Tensor, Tensor, Tensor)",
    lambda *args: quant_calls.fused_norm_dynamic(*args, donated=KEPT),
    _dynamic_sum,
)


def _written_static(x: Tensor, x_residual: Tensor, *rest: Any) -> Tensor:
    """Write the sum to x_residual and return the quantised norm."""
    out, total = quant_calls.fused_norm_static(x, x_residual, *rest, donated=DONATED)
    settle((x_residual,), (total,))
    return out


def _written_dynamic(x: Tensor, x_residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Write the sum to x_residual and return the quantised norm and its scales."""
    out, scale, total = quant_calls.fused_norm_dynamic(x, x_residual, *rest, donated=DONATED)
    settle((x_residual,), (total,))
    return out, scale


fused_add_rms_norm_static_quant_fp8_ = _define(
    f"fused_add_rms_norm_static_quant_fp8_(Tensor x, Tensor(a!) x_residual, {_STATIC_NORM}) -> Tensor",
    _written_static,
    lambda *args: _static_sum(*args)[0],
    "x_residual",
)
fused_add_rms_norm_dynamic_quant_fp8_ = _define(
    f"fused_add_rms_norm_dynamic_quant_fp8_(Tensor x, Tensor(a!) x_residual, {_DYNAMIC_NORM}) -> (Tensor, Tensor)",
    _written_dynamic,
    lambda *args: _dynamic_sum(*args)[:2],
    "x_residual",
)


def donating_static(x: Tensor, x_residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Return the quantised norm, and the sum: x_residual itself where that is contiguous, else a new tensor."""
    if not dense(x_residual):
        functional: tuple[Tensor, Tensor] = fused_add_rms_norm_static_quant_fp8(x, x_residual, *rest)
        return functional
    return fused_add_rms_norm_static_quant_fp8_(x, x_residual, *rest), x_residual


def donating_dynamic(x: Tensor, x_residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the quantised norm, its scales, and the sum: x_residual itself if contiguous, else a new tensor."""
    if not dense(x_residual):
        functional: tuple[Tensor, Tensor, Tensor] = fused_add_rms_norm_dynamic_quant_fp8(x, x_residual, *rest)
        return functional
    out, scale = fused_add_rms_norm_dynamic_quant_fp8_(x, x_residual, *rest)
    return out, scale, x_residual
