"""What quantising programs read: rows as they are, or gate and up through silu, rounded as if they had been stored."""

from __future__ import annotations

import triton
import triton.language as tl

from vllm_ir_provider_triton.programs.gate import activated
from vllm_ir_provider_triton.programs.numbers import rounded


@triton.jit  # type: ignore[untyped-decorator]
def produced(place: tl.tensor, half: tl.tensor, there: tl.tensor, GATED: tl.constexpr) -> tl.tensor:
    """Return a block in float32: what is there, or silu of it times what lies `half` a row further."""
    v = tl.load(place, mask=there, other=0.0)
    if GATED:
        up = tl.load(place + half, mask=there, other=0.0).to(tl.float32)
        result = rounded(rounded(activated(v.to(tl.float32), 0), v.dtype) * up, v.dtype)
    else:
        result = v.to(tl.float32)
    return result
