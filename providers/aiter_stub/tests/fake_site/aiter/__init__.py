"""A stand-in for AMD's AITER: its functions have the real signatures, check what the real ones trust, and run on a CPU.

They round as the kernels of amd-aiter 0.1.7.post2.dev18 were read to round, built with ROCm 6.
"""

from __future__ import annotations

from .ops.activation import silu_and_mul
from .ops.pos_encoding import rotary_embedding_fwd
from .ops.rmsnorm import rmsnorm2d_fwd, rmsnorm2d_fwd_with_add
from .strict import CALLS

__all__ = ["CALLS", "rmsnorm2d_fwd", "rmsnorm2d_fwd_with_add", "rotary_embedding_fwd", "silu_and_mul"]
