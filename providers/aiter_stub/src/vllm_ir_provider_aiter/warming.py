"""Warming up: one small call of each function that may be called, since AITER compiles at the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
import vllm_ir

from vllm_ir_provider_aiter import calls, kernels, predicates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NEOX: Final = True
SIZE: Final = 64
"""Elements of a row; which kernels are compiled does not depend on it."""


def warm_up(device: torch.device | str, dtypes: Sequence[torch.dtype]) -> None:
    """Call AITER once for each op in whose order this provider stands, and each dtype.

    A module of AITER that no list asks for is not compiled: each takes minutes.

    Args:
        device: where.
        dtypes: of the activations; all that AITER takes when empty.

    Raises:
        AiterError: AITER cannot be imported, or cannot compile a module.
    """
    wanted = [name for name in CALLS if kernels.PROVIDER in getattr(vllm_ir.ops, name).get_priority()]
    for dtype in dtypes or predicates.DTYPES:
        for name in wanted if dtype in predicates.DTYPES else ():
            CALLS[name](torch.zeros(1, SIZE, dtype=dtype, device=device))


def _rms_norm(x: torch.Tensor) -> None:
    """Normalise a row."""
    calls.rms_norm(x, x[0], 1.0)


def _fused_add_rms_norm(x: torch.Tensor) -> None:
    """Normalise a sum."""
    calls.fused_add_rms_norm(x, x, x[0], 1.0)


def _silu_and_mul(x: torch.Tensor) -> None:
    """Gate a row."""
    calls.silu_and_mul(x)


def _rotary_embedding(x: torch.Tensor) -> None:
    """Turn a head, by no angle."""
    positions = torch.zeros(1, dtype=torch.int64, device=x.device)
    calls.rotary_embedding(positions, x, x, SIZE, SIZE, x, NEOX, calls.KEPT)


CALLS: Final[dict[str, Callable[[torch.Tensor], None]]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "silu_and_mul": _silu_and_mul,
    "rotary_embedding": _rotary_embedding,
}
"""By op."""
