"""The fusion `activation_quant`: a gated activation and the quantisation of its result as one op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.compile.passes.fusion import Fusion, FusionGroup
from vllm_ir.compile.passes.norm_quant import one_value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vllm_ir.verdict import Unsupported


def static(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a gated activation over a given scale."""
    from vllm_ir import ops

    q: Tensor = ops.static_quant_fp8(ops.silu_and_mul(x), scale, dtype)
    return q


def fused_static(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return it from one op."""
    from vllm_ir import ops

    q: Tensor = ops.silu_and_mul_static_quant_fp8(x, scale, dtype)
    return q


def static_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return _packed(), torch.empty(1), torch.float8_e4m3fn


def dynamic(x: Tensor, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a gated activation over a scale of its own, and that."""
    from vllm_ir import ops

    q, scale = ops.dynamic_quant_fp8(ops.silu_and_mul(x), per_token, scale_ub, dtype)
    return q, scale


def fused_dynamic(x: Tensor, per_token: bool, scale_ub: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return both from one op."""
    from vllm_ir import ops

    q, scale = ops.silu_and_mul_dynamic_quant_fp8(x, per_token, scale_ub, dtype)
    return q, scale


def dynamic_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return _packed(), True, torch.empty(1), torch.float8_e4m3fn


def grouped(
    x: Tensor, group_size: int, column_major_scales: bool, use_ue8m0: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return a gated activation over a scale for each group of elements, and those."""
    from vllm_ir import ops

    q, scales = ops.dynamic_group_quant_fp8(ops.silu_and_mul(x), group_size, column_major_scales, use_ue8m0, dtype)
    return q, scales


def fused_grouped(
    x: Tensor, group_size: int, column_major_scales: bool, use_ue8m0: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return both from one op."""
    from vllm_ir import ops

    q, scales = ops.silu_and_mul_group_quant_fp8(x, group_size, column_major_scales, use_ue8m0, dtype)
    return q, scales


def grouped_example() -> tuple[Any, ...]:
    """Return what the pattern is drawn with."""
    import torch

    return _packed(), 8, False, False, torch.float8_e4m3fn


def has_one_scale(_x: Tensor, scale: Tensor, _dtype: torch.dtype) -> bool | Unsupported:
    """Take one scale behind a gated activation."""
    return one_value(scale)


def activation_quant() -> FusionGroup:
    """Return the pass `activation_quant`: static quantisation, dynamic per token and per tensor, and per group."""
    members = (
        Fusion(
            name="silu_static",
            pattern=static,
            replacement=fused_static,
            example=static_example,
            free=("dtype",),
            when=(has_one_scale,),
        ),
        Fusion(
            name="silu_dynamic",
            pattern=dynamic,
            replacement=fused_dynamic,
            example=dynamic_example,
            free=("per_token", "scale_ub", "dtype"),
        ),
        Fusion(
            name="silu_grouped",
            pattern=grouped,
            replacement=fused_grouped,
            example=grouped_example,
            free=("group_size", "column_major_scales", "use_ue8m0", "dtype"),
        ),
    )
    return FusionGroup(name="activation_quant", members=members, after=("noop_removal",))


def _packed() -> Tensor:
    """Return gate and up in bfloat16."""
    import torch

    return torch.empty(2, 32, dtype=torch.bfloat16)
