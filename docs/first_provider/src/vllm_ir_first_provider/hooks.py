"""What vllm-ir asks of this distribution, and nothing else: this module is imported in every process.

It stays light. Kernels are imported inside the hook, so that a machine this provider does not serve
never loads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir import hookimpl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir import IrOpImpl, Platform


@hookimpl
def vllm_ir_implementations(platform: Platform) -> Sequence[IrOpImpl]:
    """Return what this distribution implements on a platform that its manifest lists."""
    from vllm_ir_first_provider import kernels

    del platform  # a provider with kernels for several architectures chooses by it
    return [kernels.rms_norm]
