"""The fusion `qk_norm_rope`: the norms of query's and key's heads and their rotation as one op.

Models bring heads to the norm in three ways: in a dimension of their own behind the tokens, as rows of a matrix, or
already apart. Query and key may be columns of one packed projection, since every row of a head lies together there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.compile.passes.fusion import Fusion, FusionGroup
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from torch import Tensor


def heads_apart(
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
    """Normalise heads in a dimension of their own, and turn them."""
    from vllm_ir import ops

    normal_query = ops.rms_norm(query.unflatten(-1, (-1, head_size)), query_weight, epsilon).view(query.shape)
    normal_key = ops.rms_norm(key.unflatten(-1, (-1, head_size)), key_weight, epsilon).view(key.shape)
    return _turn(positions, normal_query, normal_key, head_size, rotary_dim, cos_sin_cache, is_neox_style)


def heads_as_rows(
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
    """Normalise heads as rows of a matrix, and turn them."""
    from vllm_ir import ops

    normal_query = ops.rms_norm(query.view(-1, head_size), query_weight, epsilon).view(query.shape)
    normal_key = ops.rms_norm(key.view(-1, head_size), key_weight, epsilon).view(key.shape)
    return _turn(positions, normal_query, normal_key, head_size, rotary_dim, cos_sin_cache, is_neox_style)


def heads_given(
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
    """Normalise heads that are apart already, and turn them."""
    from vllm_ir import ops

    normal_query, normal_key = ops.rms_norm(query, query_weight, epsilon), ops.rms_norm(key, key_weight, epsilon)
    return _turn(positions, normal_query, normal_key, head_size, rotary_dim, cos_sin_cache, is_neox_style)


def fused(
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
    """Return both from one op."""
    from vllm_ir import ops

    turned_query, turned_key = ops.fused_qk_norm_rope(
        positions,
        query,
        key,
        query_weight,
        key_weight,
        epsilon,
        head_size,
        rotary_dim,
        cos_sin_cache,
        is_neox_style,
    )
    return turned_query, turned_key


def _turn(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Turn query and key."""
    from vllm_ir import ops

    turned_query, turned_key = ops.rotary_embedding(
        positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style
    )
    return turned_query, turned_key


def packed_example() -> tuple[Any, ...]:
    """Return query of four heads and key of two, next to each other."""
    return _example((2, 64), (2, 32))


def given_example() -> tuple[Any, ...]:
    """Return query of four heads and key of two, in a dimension of their own."""
    return _example((2, 4, 16), (2, 2, 16))


def heads_lie_together(_positions: Tensor, query: Tensor, key: Tensor, *_: Any) -> bool | Unsupported:
    """Take query and key whose elements lie one behind the other, whatever lies between rows."""
    for name, x in (("query", query), ("key", key)):
        if x.stride(-1) != 1:
            return Unsupported(f"elements of a row of {name!r} lie apart, wanted them one behind the other")
    return True


def heads_are_given(
    _positions: Tensor, query: Tensor, key: Tensor, _weight: Any, _other: Any, _epsilon: float, head_size: int, *_: Any
) -> bool | Unsupported:
    """Take rows that are one head each: a norm over all heads of a token is another norm."""
    for name, x in (("query", query), ("key", key)):
        if x.shape[-1] != head_size:
            return Unsupported(f"rows of {name!r} are {x.shape[-1]} elements, wanted those of one head, {head_size}")
    return True


def qk_norm_rope() -> FusionGroup:
    """Return the pass `qk_norm_rope`."""
    free = ("query_weight", "key_weight", "epsilon", "head_size", "rotary_dim", "is_neox_style")
    members = tuple(
        Fusion(
            name=pattern.__name__,
            pattern=pattern,
            replacement=fused,
            example=example,
            free=free,
            strided=("query", "key"),
            when=when,
        )
        for pattern, example, when in (
            (heads_apart, packed_example, (heads_lie_together,)),
            (heads_as_rows, packed_example, (heads_lie_together,)),
            (heads_given, given_example, (heads_are_given, heads_lie_together)),
        )
    )
    # Before reshapes are taken together: the one to heads and the one before it belong to different parts.
    return FusionGroup(name="qk_norm_rope", members=members, before=("noop_removal",))


def _example(query: tuple[int, ...], key: tuple[int, ...]) -> tuple[Any, ...]:
    """Return what the patterns are drawn with; the cache of angles may have another dtype than what is turned."""
    import torch

    half = torch.bfloat16
    tensors = torch.empty(query, dtype=half), torch.empty(key, dtype=half)
    weights = torch.empty(16, dtype=half), torch.empty(16, dtype=half)
    positions = torch.empty(2, dtype=torch.int64)
    return positions, *tensors, *weights, 1e-5, 16, 16, torch.empty(8, 16), True
