"""The compiled module, connected to the torch of this process.

It reads tensors through DLPack's C exchange table, a stable C structure that torch's tensor type carries; so one binary
serves every version of torch, and a call reads no attribute through Python. What the kernels compute is left to C++,
which calls reach them to `predicates` and `kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

__all__ = ["native"]

_BLOCK_BYTES: Final = {"AVX512": 128, "AVX2": 64}
"""How much torch's vectorised loops take at once, by `torch.backends.cpu.get_cpu_capability()`: two vectors."""

_NO_BLOCK: Final = 1 << 30
"""Elsewhere torch computes gelu with the scalar functions of the C library throughout, or with something as exact."""


def _connected() -> Any:
    """Return the compiled module, ready to be called.

    Raises:
        ImportError: the module does not load here, or this torch has no exchange table.
    """
    from vllm_ir_provider_cpu_c import _native

    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:
        msg = f"torch {torch.__version__} has no DLPack exchange table; the kernels of cpu_c need torch 2.11 or later"
        raise ImportError(msg)
    _native.connect(
        table,
        torch.Tensor,
        torch.nn.Parameter,
        torch.empty_like,
        torch.Tensor.new_empty_strided,
        torch._C._len_torch_dispatch_stack,  # noqa: SLF001 - the cheapest way to see a mode, as in vllm-ir's own path
        torch._C._are_functorch_transforms_active,  # noqa: SLF001 - the same for transforms
        torch.get_num_threads,
        torch.Tensor.is_neg,
        _BLOCK_BYTES.get(torch.backends.cpu.get_cpu_capability(), _NO_BLOCK),
    )
    return _native


if TYPE_CHECKING:
    from vllm_ir_provider_cpu_c import _native as native
else:
    native = _connected()
