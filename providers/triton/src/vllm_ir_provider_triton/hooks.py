"""What vllm-ir asks of this distribution, and nothing else: this module is imported in every process.

Kernels, and with them torch, are imported inside the hooks; Triton only by the first launch.
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
    """Return the kernels of both providers, which are compiled when they are first needed."""
    from vllm_ir_provider_triton import declared, invariant, kernels

    del platform
    return [
        kernels.rms_norm,
        kernels.fused_add_rms_norm,
        kernels.silu_and_mul,
        kernels.gelu_and_mul,
        kernels.rotary_embedding,
        invariant.rms_norm,
        invariant.fused_add_rms_norm,
        invariant.silu_and_mul,
        invariant.gelu_and_mul,
        invariant.rotary_embedding,
        *declared.FREE.values(),
        *declared.FIXED.values(),
    ]


@hookimpl
def vllm_ir_warm_up(platform: Platform, device: torch.device | None, dtypes: Sequence[torch.dtype]) -> None:
    """Compile and load the kernels of usual sizes for these dtypes on a device."""
    from vllm_ir_provider_triton import warming

    del platform
    warming.warm_up(device, dtypes)
