"""What vllm-ir asks of this distribution, and nothing else: this module is imported in every process.

Kernels, and with them the compiled module, are imported inside the hook.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir import IrOpImpl, Platform


@hookimpl
def vllm_ir_implementations(platform: Platform) -> Sequence[IrOpImpl]:
    """Return the kernels; which instruction set they use is chosen inside, when they are called."""
    from vllm_ir_provider_cpu_c import kernels, quant_kernels

    del platform
    return [
        kernels.rms_norm,
        kernels.fused_add_rms_norm,
        kernels.silu_and_mul,
        kernels.gelu_and_mul,
        kernels.rotary_embedding,
        kernels.fused_qk_norm_rope,
        quant_kernels.static_quant_fp8,
        quant_kernels.dynamic_quant_fp8,
        quant_kernels.dynamic_group_quant_fp8,
        quant_kernels.rms_norm_static_quant_fp8,
        quant_kernels.fused_add_rms_norm_static_quant_fp8,
        quant_kernels.rms_norm_dynamic_quant_fp8,
        quant_kernels.fused_add_rms_norm_dynamic_quant_fp8,
        quant_kernels.silu_and_mul_static_quant_fp8,
        quant_kernels.silu_and_mul_dynamic_quant_fp8,
        quant_kernels.silu_and_mul_group_quant_fp8,
    ]
