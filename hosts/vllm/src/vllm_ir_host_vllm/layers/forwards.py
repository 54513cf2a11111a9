"""What a replaced layer runs: one function for each kind of layer, whatever the platform.

vLLM's layers keep their parameters, buffers and constructors; only what they compute with changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir import ops

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    """Return the normalised x, or with a residual the normalised sum and the sum; both may be written to.

    Args:
        self: vLLM's RMSNorm.
        x: [..., hidden_size].
        residual: of x's shape, or None.
    """
    if residual is None:
        # Older versions of vLLM have one flag for both, or none, and a weight of ones instead.
        weight = self.weight.data if getattr(self, "pass_weight", True) else None
        return ops.rms_norm(x, weight, self.variance_epsilon, self.variance_size_override)
    weight = self.weight.data if getattr(self, "pass_weight_add", True) else None
    return ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, self.variance_epsilon, self.variance_size_override)


def gemma_rms_norm(self: Any, x: Tensor, residual: Tensor | None = None) -> Any:
    """Return what `rms_norm` does with a weight of one plus the layer's, in float32.

    Args:
        self: vLLM's GemmaRMSNorm.
        x: [..., hidden_size].
        residual: of x's shape, or None.
    """
    weight = self.weight.data.float() + 1.0
    if residual is None:
        return ops.rms_norm(x, weight, self.variance_epsilon)
    return ops.fused_add_rms_norm(x, residual, weight, self.variance_epsilon)


def silu_and_mul(x: Tensor) -> Any:
    """Return silu(gate) * up of rows [..., 2 * size]; it takes no layer, since vLLM calls it without one, too."""
    return ops.silu_and_mul(x)


def gelu_and_mul(self: Any, x: Tensor) -> Any:
    """Return gelu(gate) * up of rows [..., 2 * size], in the layer's approximation."""
    return ops.gelu_and_mul(x, self.approximate)


def rotary_embedding(self: Any, positions: Tensor, query: Tensor, key: Tensor | None = None) -> Any:
    """Return query and key turned by the angles of their positions; both may be written to.

    Args:
        self: vLLM's RotaryEmbedding, or one of its subclasses that differ in their angles alone.
        positions: one a token.
        query: [num_tokens, heads * head_size], or with the heads in a dimension of their own.
        key: like query; without one there is nothing for the op to turn, and vLLM's own code runs.
    """
    cache = self._match_cos_sin_cache_dtype(query)
    if key is None:
        return self.forward_static(positions, query, key, self.head_size, self.rotary_dim, cache, self.is_neox_style)
    return ops.rotary_embedding.maybe_inplace(
        positions, query, key, self.head_size, self.rotary_dim, cache, self.is_neox_style
    )
