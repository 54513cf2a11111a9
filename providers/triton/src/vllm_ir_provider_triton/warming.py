"""Compiling and loading ahead of a request or a capture what requests of usual sizes will ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from vllm_ir.environment import Environment

from vllm_ir_provider_triton import geometry, loading, rotation
from vllm_ir_provider_triton.predicates import DTYPES
from vllm_ir_provider_triton.variants import GELU, GELU_TANH, SILU

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_ir_provider_triton.variants import Launch, Variant

ROWS: Final = (1, 1024)
"""Few rows and many."""

NORMS: Final = (128, 1024, 2048, 4096, 8192)
"""Sizes of rows, one for each block that is usual: heads, and hidden sizes up to 8192."""

GATES: Final = (2048,)
HEADS: Final = (64, 128)
"""Sizes of heads, turned as a whole."""


def warm_up(device: torch.device | None, dtypes: Sequence[torch.dtype]) -> None:
    """Compile and load the kernels of usual sizes for these dtypes on a device; what is loaded already costs nothing.

    Rows of other sizes, at odd addresses, or with a weight of another dtype are compiled at their first call.

    Args:
        device: where; None for torch's current one. One that is no GPU has nothing to warm up.
        dtypes: of the activations; empty for all. Dtypes without kernels are left out.

    Raises:
        KernelError: a kernel cannot be compiled or loaded.
    """
    if device is not None and device.type != "cuda":
        return
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    arch = loading.architecture(torch.device("cuda", index))
    fixed = Environment.read().batch_invariant
    for dtype in dtypes or DTYPES:
        if dtype in DTYPES:
            for variant in usual(dtype, arch, fixed=fixed):
                loading.load(variant, index)


def usual(dtype: torch.dtype, arch: str, *, fixed: bool) -> Iterator[Variant]:
    """Yield the variants that usual calls have, each once.

    Args:
        dtype: of the activations.
        arch: such as "sm_90".
        fixed: whether the batch-invariant ones are meant.
    """
    yield from dict.fromkeys(launch.variant for launch in _launches(dtype, arch, fixed=fixed))


def _launches(dtype: torch.dtype, arch: str, *, fixed: bool) -> Iterator[Launch]:
    """Yield launches on memory that is not there."""
    weight_of = {size: _nowhere(size, dtype=dtype) for size in NORMS}
    for rows in ROWS:
        for size, weight in weight_of.items():
            x = _nowhere(rows, size, dtype=dtype)
            yield geometry.norm("rms_norm", x, None, weight, 1e-6, None, x, None, arch, fixed=fixed)
            yield geometry.norm("fused_add_rms_norm", x, x, weight, 1e-6, None, x, x, arch, fixed=fixed)
        for size in GATES:
            x = _nowhere(rows, 2 * size, dtype=dtype)
            for activation in (SILU, GELU, GELU_TANH):
                yield geometry.gate(activation, x, _nowhere(rows, size, dtype=dtype), arch, fixed=fixed)
    for size in HEADS:
        x, positions = _nowhere(2, 32 * size, dtype=dtype), _nowhere(2, dtype=torch.int64)
        yield rotation.plan(positions, x, x, size, size, _nowhere(2, size, dtype=dtype), (x, x), arch, neox=True)


def _nowhere(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without memory, whose address is a multiple of everything."""
    return torch.empty(sizes, dtype=dtype, device="meta")
