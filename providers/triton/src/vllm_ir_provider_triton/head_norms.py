"""The launches of fused_qk_norm_rope: those of the rotation, with weights, and with what a mean of squares needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir_provider_triton import rotation
from vllm_ir_provider_triton.geometry import dtype_name
from vllm_ir_provider_triton.variants import ACCESS, Launch, Variant

if TYPE_CHECKING:
    from torch import Tensor


def plans(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    epsilon: float,
    head_size: int,
    rotary_dim: int,
    cache: Tensor,
    outputs: tuple[Tensor, Tensor],
    arch: str,
    *,
    neox: bool,
) -> tuple[Launch, ...]:
    """Plan the normalisation and rotation of query and key into contiguous outputs, which may be query and key.

    Raises:
        ValueError: query, key and positions are not of as many tokens.
    """
    turned = rotation.plans(positions, query, key, head_size, rotary_dim, cache, outputs, arch, neox=neox)
    weights = ((query_weight, key_weight),) if len(turned) == 1 else ((query_weight,) * 2, (key_weight,) * 2)
    return tuple(_normalizing(launch, *pair, epsilon) for launch, pair in zip(turned, weights, strict=True))


def _normalizing(launch: Launch, query_weight: Tensor | None, key_weight: Tensor | None, epsilon: float) -> Launch:
    """Return a launch of the rotation as one that normalises first."""
    variant = launch.variant
    *turned, positions = launch.tensors
    # A weight that is not there is never read; query and key stand for them.
    first, second = (
        turned[2] if query_weight is None else query_weight,
        turned[3] if key_weight is None else key_weight,
    )
    tensors = (*turned, first, second, positions)
    addresses = (*launch.addresses[:-1], first.data_ptr(), second.data_ptr(), launch.addresses[-1])
    *dtypes, last = variant.dtypes
    neox, _, _, one_stride, heads, pairs = variant.constants
    return Launch(
        Variant(
            "qk_norm_rope",
            (*dtypes, dtype_name(first.dtype), dtype_name(second.dtype), last),
            (
                neox,
                launch.numbers[5] > 2 * launch.numbers[6],
                query_weight is not None,
                key_weight is not None,
                one_stride,
                pairs.bit_length() - 1,
                heads,
                pairs,
            ),
            variant.wide and not (addresses[5] | addresses[6]) % ACCESS,
            variant.warps,
        ),
        launch.blocks,
        tensors,
        addresses,
        (*launch.numbers, epsilon),
    )
