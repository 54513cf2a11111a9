"""What vllm-ir asks of this distribution, and nothing else: this module is imported in every process.

torch is imported inside the hooks, AITER at the first call of a kernel.
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
    """Return the four implementations, each with the reason where the installed AITER cannot be called for it."""
    from vllm_ir_provider_aiter import kernels

    del platform
    return kernels.implementations()


@hookimpl
def vllm_ir_warm_up(platform: Platform, device: torch.device | None, dtypes: Sequence[torch.dtype]) -> None:
    """Import AITER and let it compile the modules whose ops may run here; the first time that takes minutes."""
    from vllm_ir_provider_aiter import warming

    warming.warm_up(platform.device_type if device is None else device, dtypes)
