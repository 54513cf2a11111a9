"""The fusion `norm_quant`: a norm, with or without an addition before it, and the quantisation of its result as one op.

The fused op's native function calls the natives of its parts one after the other, so native's bits stay what they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile.passes.fusion import Fusion, FusionGroup
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EPSILON: Final = 1e-5
"""Stands for the epsilon of a norm in the examples."""


def norm_static(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return a norm over a given scale."""
    from vllm_ir import ops

    q: Tensor = ops.static_quant_fp8(ops.rms_norm(x, weight, epsilon), scale, dtype)
    return q


def fused_norm_static(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Return it from one op."""
    from vllm_ir import ops

    q: Tensor = ops.rms_norm_static_quant_fp8(x, weight, scale, epsilon, dtype)
    return q


def norm_static_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return *_half(16)[::2], torch.empty(1), EPSILON, torch.float8_e4m3fn


def add_static(
    x: Tensor, residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the norm of a sum over a given scale, and the sum."""
    from vllm_ir import ops

    normalized, total = ops.fused_add_rms_norm(x, residual, weight, epsilon)
    return ops.static_quant_fp8(normalized, scale, dtype), total


def fused_add_static(
    x: Tensor, residual: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return both from one op."""
    from vllm_ir import ops

    q, total = ops.fused_add_rms_norm_static_quant_fp8(x, residual, weight, scale, epsilon, dtype)
    return q, total


def add_static_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return *_half(16), torch.empty(1), EPSILON, torch.float8_e4m3fn


def norm_dynamic(
    x: Tensor, weight: Tensor | None, epsilon: float, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return a norm over a scale of its own, and that."""
    from vllm_ir import ops

    q, scale = ops.dynamic_quant_fp8(ops.rms_norm(x, weight, epsilon), per_token, scale_ub, dtype)
    return q, scale


def fused_norm_dynamic(
    x: Tensor, weight: Tensor | None, epsilon: float, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return both from one op."""
    from vllm_ir import ops

    q, scale = ops.rms_norm_dynamic_quant_fp8(x, weight, epsilon, per_token, scale_ub, dtype)
    return q, scale


def norm_dynamic_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return *_half(16)[::2], EPSILON, True, torch.empty(1), torch.float8_e4m3fn


def add_dynamic(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool,
    scale_ub: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of a sum over a scale of its own, that, and the sum."""
    from vllm_ir import ops

    normalized, total = ops.fused_add_rms_norm(x, residual, weight, epsilon)
    q, scale = ops.dynamic_quant_fp8(normalized, per_token, scale_ub, dtype)
    return q, scale, total


def fused_add_dynamic(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool,
    scale_ub: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return all three from one op."""
    from vllm_ir import ops

    q, scale, total = ops.fused_add_rms_norm_dynamic_quant_fp8(x, residual, weight, epsilon, per_token, scale_ub, dtype)
    return q, scale, total


def add_dynamic_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return *_half(16), EPSILON, True, torch.empty(1), torch.float8_e4m3fn


def one_value(scale: Tensor) -> bool | Unsupported:
    """Take a scale of one value: the fused ops have none per channel."""
    if tuple(scale.shape) in ((), (1,)):
        return True
    sizes = ", ".join(map(str, scale.shape))
    return Unsupported(f"'scale' is of shape [{sizes}], and the fused op takes one value for the whole tensor")


def has_one_scale(_x: Tensor, _weight: Tensor | None, scale: Tensor, *_: Any) -> bool | Unsupported:
    """Take one scale behind a norm."""
    return one_value(scale)


def has_one_scale_behind(
    _x: Tensor, _residual: Tensor, _weight: Tensor | None, scale: Tensor, *_: Any
) -> bool | Unsupported:
    """Take one scale behind a sum and its norm."""
    return one_value(scale)


def norm_quant() -> FusionGroup:
    """Return the pass `norm_quant`: each norm with static and with dynamic quantisation, per token and per tensor."""
    static, dynamic = ("weight", "epsilon", "dtype"), ("weight", "epsilon", "per_token", "scale_ub", "dtype")
    members = (
        Fusion(
            name="norm_static",
            pattern=norm_static,
            replacement=fused_norm_static,
            example=norm_static_example,
            free=static,
            when=(has_one_scale,),
        ),
        Fusion(
            name="add_static",
            pattern=add_static,
            replacement=fused_add_static,
            example=add_static_example,
            free=static,
            when=(has_one_scale_behind,),
        ),
        Fusion(
            name="norm_dynamic",
            pattern=norm_dynamic,
            replacement=fused_norm_dynamic,
            example=norm_dynamic_example,
            free=dynamic,
        ),
        Fusion(
            name="add_dynamic",
            pattern=add_dynamic,
            replacement=fused_add_dynamic,
            example=add_dynamic_example,
            free=dynamic,
        ),
    )
    return FusionGroup(name="norm_quant", members=members, after=("noop_removal", "add_norm"))


def _half(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return activation, residual and weight in bfloat16."""
    import torch

    x, residual = (torch.empty(2, size, dtype=torch.bfloat16) for _ in range(2))
    return x, residual, torch.empty(size, dtype=torch.bfloat16)
