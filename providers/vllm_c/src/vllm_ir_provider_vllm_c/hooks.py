"""What vllm-ir asks of this distribution, and nothing else: this module is imported in every process.

Kernels, and with them torch and CuPy, are imported inside the hooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from vllm_ir import IrOpImpl, Platform


@hookimpl
def vllm_ir_implementations(platform: Platform) -> Sequence[IrOpImpl]:
    """Return the kernels; they are compiled at their first call, or by `vllm_ir_warm_up`."""
    from vllm_ir_provider_vllm_c import kernels, norm_quant_kernels, quant_kernels

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
        quant_kernels.silu_and_mul_static_quant_fp8,
        quant_kernels.silu_and_mul_dynamic_quant_fp8,
        quant_kernels.silu_and_mul_group_quant_fp8,
        norm_quant_kernels.rms_norm_static_quant_fp8,
        norm_quant_kernels.rms_norm_dynamic_quant_fp8,
        norm_quant_kernels.fused_add_rms_norm_static_quant_fp8,
        norm_quant_kernels.fused_add_rms_norm_dynamic_quant_fp8,
    ]


@hookimpl
def vllm_ir_warm_up(platform: Platform, device: torch.device | None, dtypes: Sequence[torch.dtype]) -> None:
    """Compile and load every kernel for these dtypes on a device."""
    from vllm_ir_provider_vllm_c import loading

    del platform
    loading.warm_up(device, dtypes)
