"""What normalising and turning heads means, as in attention with normalised query and key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.ops.checks import check_weight
from vllm_ir.ops.layernorm import rms_norm
from vllm_ir.ops.rotary import check_rotation, rotary_embedding

if TYPE_CHECKING:
    from vllm_ir.composition import Parts


def _heads(x: Tensor, head_size: int) -> Tensor:
    """Return a view with the elements of one head as the last dimension."""
    heads: Tensor = x.unflatten(-1, (x.shape[-1] // head_size, head_size))
    return heads


@register_op(parts=(rms_norm, rotary_embedding), activations=["query", "key"], allow_inplace=True)
def fused_qk_norm_rope(  # noqa: D417 - callers of the op give no parts
    parts: Parts,
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key with each head normalised as a row of its own, then turned by its token's angles.

    The normalised heads are rounded to the dtype of query and key before they are turned.

    Args:
        positions: [num_tokens], or any shape of as many elements, of an integer dtype.
        query: [..., heads * head_size] or [..., heads, head_size] for all tokens, of any floating-point dtype.
        key: like query; the number of heads may be another.
        query_weight: [head_size] of any floating-point dtype, or None for no multiply.
        key_weight: the same for key.
        epsilon: added to the mean of squares of each head.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned; even, at most head_size.
        cos_sin_cache: [max_position, rotary_dim]: cosines, then sines; taken in the dtype of query and key.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1, as in GPT-J.

    Returns:
        two new contiguous tensors of the shapes and dtypes of query and key.

    Raises:
        WrongArgument: a dtype or a size does not fit.
    """
    check_rotation("fused_qk_norm_rope", positions, query, key, head_size, rotary_dim, cos_sin_cache)
    check_weight("fused_qk_norm_rope", query_weight, head_size, "query_weight")
    check_weight("fused_qk_norm_rope", key_weight, head_size, "key_weight")
    normalized = [
        parts.rms_norm(_heads(x, head_size), weight, epsilon).view(x.shape)
        for x, weight in ((query, query_weight), (key, key_weight))
    ]
    turned, other = parts.owned.rotary_embedding(
        positions, *normalized, head_size, rotary_dim, cos_sin_cache, is_neox_style
    )
    return turned, other


@fused_qk_norm_rope.register_input_generator
def fused_qk_norm_rope_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    epsilon: float = 1e-5,
    head_size: int = 16,
    max_position: int = 128,
    is_neox_style: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float, int, int, Tensor, bool]:
    """Return random positions, query and key [num_tokens, hidden_size], two weights, head size, and angles."""
    positions, query, key, *rest = rotary_embedding.generate_inputs(
        num_tokens=num_tokens,
        hidden_size=hidden_size,
        dtype=dtype,
        device=device,
        head_size=head_size,
        max_position=max_position,
        is_neox_style=is_neox_style,
    )
    weights = (torch.randn(head_size, dtype=dtype, device=device) for _ in range(2))
    return positions, query, key, *weights, epsilon, *rest


# As of rms_norm, whose rows may move by a few units; turning adds two of them.
fused_qk_norm_rope.override_tolerance(torch.float32, atol=2e-5, rtol=5e-6)
fused_qk_norm_rope.override_tolerance(torch.float16, atol=2e-3, rtol=2e-3)
fused_qk_norm_rope.override_tolerance(torch.bfloat16, atol=2e-2, rtol=1.6e-2)
