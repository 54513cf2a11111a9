"""The fusion `add_norm`: a sum and its normalisation as one op, `fused_add_rms_norm`.

That op normalises the float32 sum before it is rounded. In float32 (and float64) a sum in the graph is the same. In
bfloat16 and float16 it was rounded, and leaving that out would change answers, so a sum fits only where the graph makes
it in float32, and rounds it for the residual alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.compile.graph import same
from vllm_ir.compile.passes.fusion import Fusion, FusionGroup
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def same_dtype(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None
) -> tuple[Tensor, Tensor]:
    """Return the norm of a sum, and the sum, in one dtype throughout."""
    from vllm_ir import ops

    total = x + residual
    return ops.rms_norm(total, weight, epsilon, variance_size), total


def summed_in_float32(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None
) -> tuple[Tensor, Tensor]:
    """Return the norm of a sum in float32, and the sum, both rounded at the end."""
    from vllm_ir import ops

    total = x.float() + residual.float()
    return ops.rms_norm(total, weight, epsilon, variance_size).to(x.dtype), total.to(x.dtype)


def fused(
    x: Tensor, residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None
) -> tuple[Tensor, Tensor]:
    """Return both from one op."""
    from vllm_ir import ops

    normalized, total = ops.fused_add_rms_norm(x, residual, weight, epsilon, variance_size)
    return normalized, total


def is_wide(x: Tensor, *_: Any) -> bool | Unsupported:
    """Take sums that no rounding follows: those in float32 and float64."""
    import torch

    if x.dtype in (torch.float32, torch.float64):
        return True
    return Unsupported(
        f"the sum is rounded to {str(x.dtype).removeprefix('torch.')} before it is normalised, and fused_add_rms_norm"
        " normalises it unrounded; sum in float32, or allow it with add_norm(always=True)"
    )


def have_one_shape(x: Tensor, residual: Tensor, *_: Any) -> bool | Unsupported:
    """Take two tensors of one shape: the fused op repeats none."""
    if len(x.shape) == len(residual.shape) and all(map(same, x.shape, residual.shape)):
        return True
    return Unsupported("'x' and 'residual' are of different shapes")


def example(dtype: torch.dtype) -> tuple[Any, ...]:
    """Return what the patterns are drawn with."""
    import torch

    return torch.empty(2, 16, dtype=dtype), torch.empty(2, 16, dtype=dtype), torch.empty(16, dtype=dtype), 1e-5, None


def wide_example() -> tuple[Any, ...]:
    """Return the example in float32."""
    import torch

    return example(torch.float32)


def half_example() -> tuple[Any, ...]:
    """Return the example in bfloat16."""
    import torch

    return example(torch.bfloat16)


def add_norm(*, always: bool = False) -> FusionGroup:
    """Return the pass `add_norm`.

    Args:
        always: also where the sum is rounded before it is normalised, although answers may change by that rounding.
    """
    free = ("weight", "epsilon", "variance_size")
    before = ("norm_quant",)
    plain = Fusion(
        name="add_norm_plain" if not always else "add_norm_always",
        pattern=same_dtype,
        replacement=fused,
        example=wide_example,
        free=free,
        when=(have_one_shape,) if always else (have_one_shape, is_wide),
    )
    wide = Fusion(
        name="add_norm_float32",
        pattern=summed_in_float32,
        replacement=fused,
        example=half_example,
        free=free,
        when=(have_one_shape,),
    )
    return FusionGroup(name="add_norm", members=(wide, plain), before=before, after=("noop_removal",))
