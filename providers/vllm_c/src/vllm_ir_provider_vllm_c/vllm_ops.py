"""vLLM's own kernels, `torch.ops._C`, where a process has loaded them: which of them take the place of ours.

Only those that keep what this provider promises. vLLM's norms do not: they choose their block, and with it the order of
the sum, by the number of tokens, and the fused one rounds the sum before the variance. Its gates take dense inputs and
ours the rest, and a build of vLLM may contract where ours do not, so a row's bits could go by how it was cut out of a
batch: under VLLM_BATCH_INVARIANT=1 ours serve alone. What quantises, and what normalises heads, is ours everywhere:
nobody has shown that vLLM's have native's bits. vLLM is never imported here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch
from vllm_ir.environment import Environment

from vllm_ir_provider_vllm_c.variants import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

GATES: Final = {"SILU": "silu_and_mul", "GELU": "gelu_and_mul", "GELU_TANH": "gelu_tanh_and_mul"}
"""vLLM's name of each activation."""

OURS: Final = "this distribution's own kernels"
THEIRS: Final = "torch.ops._C of vLLM for contiguous inputs, otherwise this distribution's own kernels"


@cache
def gate(activation: str) -> Callable[..., Any] | None:
    """Return vLLM's function (out, x) -> None for an activation, or None; asked once, so that it never changes."""
    if Environment.read().batch_invariant:
        return None
    name = GATES[activation]
    namespace = torch.ops._C  # noqa: SLF001 - what vLLM calls its namespace
    if not hasattr(namespace, name):
        return None
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"_C::{name}", "CUDA"):  # noqa: SLF001 - no public question
        return None
    function: Callable[..., Any] = getattr(namespace, name)
    return function


def serving() -> dict[str, str]:
    """Return which kernels serve each op in this process."""
    both = {"silu_and_mul": gate("SILU"), "gelu_and_mul": gate("GELU") and gate("GELU_TANH")}
    return {op: THEIRS if both.get(op) else OURS for op in OPS}
