"""The ops of core, each a meaning and nothing else; ops of other distributions are found here by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir import runtime
from vllm_ir.ops.activation import gelu_and_mul, silu_and_mul
from vllm_ir.ops.fused_activation import (
    silu_and_mul_dynamic_quant_fp8,
    silu_and_mul_group_quant_fp8,
    silu_and_mul_static_quant_fp8,
)
from vllm_ir.ops.fused_quantization import (
    fused_add_rms_norm_dynamic_quant_fp8,
    fused_add_rms_norm_static_quant_fp8,
    rms_norm_dynamic_quant_fp8,
    rms_norm_static_quant_fp8,
)
from vllm_ir.ops.fused_rotary import fused_qk_norm_rope
from vllm_ir.ops.layernorm import fused_add_rms_norm, rms_norm
from vllm_ir.ops.quantization import dynamic_group_quant_fp8, dynamic_quant_fp8, static_quant_fp8
from vllm_ir.ops.rotary import rotary_embedding

if TYPE_CHECKING:
    from vllm_ir.op import IrOp

__all__ = [
    "dynamic_group_quant_fp8",
    "dynamic_quant_fp8",
    "fused_add_rms_norm",
    "fused_add_rms_norm_dynamic_quant_fp8",
    "fused_add_rms_norm_static_quant_fp8",
    "fused_qk_norm_rope",
    "gelu_and_mul",
    "rms_norm",
    "rms_norm_dynamic_quant_fp8",
    "rms_norm_static_quant_fp8",
    "rotary_embedding",
    "silu_and_mul",
    "silu_and_mul_dynamic_quant_fp8",
    "silu_and_mul_group_quant_fp8",
    "silu_and_mul_static_quant_fp8",
    "static_quant_fp8",
]


def __getattr__(name: str) -> IrOp:
    """Return an op that another distribution or the program itself has registered.

    Raises:
        UnknownOp: there is none of that name; it is an AttributeError, too.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    state = runtime.current()
    if name not in state.registry:
        state.load()
    return state.registry.get(name)


def __dir__() -> list[str]:
    """Return the names of all ops that are registered."""
    return sorted({*__all__, *runtime.current().registry.names})
