"""What a replaced layer runs: one function for each kind of layer, whatever the platform.

vLLM's layers keep their parameters, buffers and constructors; only what they compute with changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class Calls:
    """The ops as layers call them.

    vLLM compiles a graph ahead of time and drops its guards, and in such a graph an op of ours would stay whole. So
    where native leads anyway, Dynamo is given native's own code, which Inductor fuses as it does vLLM's.

    Args:
        inlined: the ops that native runs in every compiled graph of this process.
    """

    def __init__(self, inlined: frozenset[str] = frozenset()) -> None:
        self.rms_norm = _call(ops.rms_norm, ops.rms_norm, inlined)
        self.fused_add_rms_norm = _call(ops.fused_add_rms_norm, ops.fused_add_rms_norm, inlined)
        self.donating_fused_add_rms_norm = _call(ops.fused_add_rms_norm, ops.fused_add_rms_norm.maybe_inplace, inlined)
        self.silu_and_mul = _call(ops.silu_and_mul, ops.silu_and_mul, inlined)
        self.gelu_and_mul = _call(ops.gelu_and_mul, ops.gelu_and_mul, inlined)
        self.rotary_embedding = _call(ops.rotary_embedding, ops.rotary_embedding.maybe_inplace, inlined)


def _call(op: Any, entry: Callable[..., Any], inlined: frozenset[str]) -> Callable[..., Any]:
    """Return what calls an op, or native where Dynamo traces and native leads."""
    if op.name not in inlined:
        return entry
    native = op.declaration.native

    def call(*args: Any) -> Any:
        """Call native where Dynamo traces, else the op."""
        return native(*args) if is_dynamo_compiling() else entry(*args)

    return call


def rms_norm(calls: Calls) -> Callable[..., Any]:
    """Return what vLLM's RMSNorm runs."""

    def forward(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        """Return the normalised x [..., hidden_size], or with a residual the normalised sum and the sum.

        With a residual, both may be written to.
        """
        if residual is None:
            # Older versions of vLLM have one flag for both, or none, and a weight of ones instead.
            weight = self.weight.data if getattr(self, "pass_weight", True) else None
            return calls.rms_norm(x, weight, self.variance_epsilon, self.variance_size_override)
        weight = self.weight.data if getattr(self, "pass_weight_add", True) else None
        return calls.donating_fused_add_rms_norm(
            x, residual, weight, self.variance_epsilon, self.variance_size_override
        )

    return forward


def gemma_rms_norm(calls: Calls) -> Callable[..., Any]:
    """Return what vLLM's GemmaRMSNorm runs: the norms with a weight of one plus the layer's, in float32."""

    def forward(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
        """Return the normalised x [..., hidden_size], or with a residual the normalised sum and the sum."""
        weight = self.weight.data.float() + 1.0
        if residual is None:
            return calls.rms_norm(x, weight, self.variance_epsilon)
        return calls.fused_add_rms_norm(x, residual, weight, self.variance_epsilon)

    return forward


def silu_and_mul(calls: Calls) -> Callable[..., Any]:
    """Return what vLLM's SiluAndMul runs; it takes no layer, since vLLM calls it without one, too."""

    def forward(x: Tensor) -> Any:
        """Return silu(gate) * up of rows [..., 2 * size]."""
        return calls.silu_and_mul(x)

    return forward


def gelu_and_mul(calls: Calls) -> Callable[..., Any]:
    """Return what vLLM's GeluAndMul runs."""

    def forward(self: Any, x: Tensor) -> Any:
        """Return gelu(gate) * up of rows [..., 2 * size], in the layer's approximation."""
        return calls.gelu_and_mul(x, self.approximate)

    return forward


def rotary_embedding(calls: Calls) -> Callable[..., Any]:
    """Return what vLLM's RotaryEmbedding runs, and those of its subclasses that differ in their angles alone."""

    def forward(self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
        """Return query and key turned by the angles of their positions; both may be written to.

        Without a key there is nothing for the op to turn, and vLLM's own code runs.
        """
        cache = self._match_cos_sin_cache_dtype(query)
        arguments = (self.head_size, self.rotary_dim, cache, self.is_neox_style)
        if key is None:
            return self.forward_static(positions, query, key, *arguments)
        return calls.rotary_embedding(positions, query, key, *arguments)

    return forward
