"""What rotary position embedding means: pairs of a head's elements, turned by the angle of the token's position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vllm_ir.declare import register_op
from vllm_ir.errors import WrongArgument
from vllm_ir.ops.checks import check_floating, check_number


def check_rotation(
    op: str, positions: Tensor, query: Tensor, key: Tensor, head_size: int, rotary_dim: int, cos_sin_cache: Tensor
) -> None:
    """Raise unless query and key are whole heads, and the angles fit positions and heads.

    Raises:
        WrongArgument: a dtype or a size does not fit.
    """
    if positions.is_floating_point() or positions.dtype == torch.bool:
        raise WrongArgument(op=op, parameter="positions", got=f"of dtype {positions.dtype}", wanted="an integer dtype")
    check_number(op, "head_size", head_size)
    check_number(op, "rotary_dim", rotary_dim)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise WrongArgument(
            op=op,
            parameter="rotary_dim",
            got=str(rotary_dim),
            wanted=f"an even number from 2 to head_size {head_size}",
        )
    if cos_sin_cache.dim() != 2 or cos_sin_cache.shape[-1] != rotary_dim:  # noqa: PLR2004 - rows and columns
        raise WrongArgument(
            op=op,
            parameter="cos_sin_cache",
            got=f"of shape {tuple(cos_sin_cache.shape)}",
            wanted=f"[max_position, rotary_dim {rotary_dim}]",
        )
    for parameter, x in (("query", query), ("key", key)):
        check_floating(op, parameter, x)
        if x.shape[-1] % head_size:
            raise WrongArgument(
                op=op,
                parameter=parameter,
                got=f"of last size {x.shape[-1]}",
                wanted=f"a multiple of head_size {head_size}",
            )


def _heads(x: Tensor, tokens: int, head_size: int) -> int:
    """Return how many heads a token has; never by dividing by the number of tokens, of which there may be none."""
    if x.shape[-1] != head_size:
        return x.shape[-1] // head_size
    # One head of each token, or heads in a dimension of their own. With two dimensions it is all the same: each row
    # takes the angle of its own token, or of the only one.
    # torch.Size.numel would make a plain number of sizes that a compiler keeps open; the product keeps them so.
    return x.shape[-2] if x.dim() > 2 and math.prod(x.shape[:-2]) == tokens else 1  # noqa: PLR2004 - see above


def _turn(x: Tensor, cos: Tensor, sin: Tensor, head_size: int, rotary_dim: int, *, neox: bool) -> Tensor:
    """Return x with the first `rotary_dim` elements of each head turned; every product is rounded to x's dtype."""
    heads = x.reshape(-1, _heads(x, cos.shape[0], head_size), head_size)
    turned, kept = heads[..., :rotary_dim], heads[..., rotary_dim:]
    if neox:
        first, second = turned[..., : rotary_dim // 2], turned[..., rotary_dim // 2 :]
    else:
        first, second = turned[..., ::2], turned[..., 1::2]
    pair = (first * cos - second * sin, second * cos + first * sin)
    rotated = torch.cat(pair, dim=-1) if neox else torch.stack(pair, dim=-1).flatten(-2)
    if rotary_dim == head_size:
        return rotated.reshape(x.shape)
    return torch.cat((rotated, kept), dim=-1).reshape(x.shape)


@register_op(activations=["query", "key"], allow_inplace=True, batch_invariant=True)
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key with each head turned by the angles of its token's position.

    Each pair (a, b) becomes (a cos - b sin, b cos + a sin) in the dtype of query and key (Su et al.,
    arXiv:2104.09864). A result is made of products and sums of a token's own elements, so it is batch-invariant.

    Args:
        positions: [num_tokens], or any shape of as many elements, of an integer dtype.
        query: [..., heads * head_size] or [..., heads, head_size] for all tokens, of any floating-point dtype.
        key: like query; the number of heads may be another.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned; even, at most head_size.
        cos_sin_cache: [max_position, rotary_dim]: cosines, then sines; taken in the dtype of query and key.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1, as in GPT-J.

    Returns:
        two new contiguous tensors of the shapes and dtypes of query and key.

    Raises:
        WrongArgument: a dtype or a size does not fit.
    """
    check_rotation("rotary_embedding", positions, query, key, head_size, rotary_dim, cos_sin_cache)
    angles = cos_sin_cache.index_select(0, positions.flatten()).unsqueeze(-2)
    results = []
    for x in (query, key):
        cos, sin = angles.to(x.dtype).chunk(2, dim=-1)
        results.append(_turn(x, cos, sin, head_size, rotary_dim, neox=is_neox_style))
    return results[0], results[1]


@rotary_embedding.register_input_generator
def rotary_embedding_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    head_size: int = 16,
    max_position: int = 128,
    is_neox_style: bool = True,
) -> tuple[Tensor, Tensor, Tensor, int, int, Tensor, bool]:
    """Return random positions, query and key [num_tokens, hidden_size], head size, and a cache of base 10000."""
    positions = torch.randint(0, max_position, (num_tokens,), device=device)
    query, key = (torch.randn(num_tokens, hidden_size, dtype=dtype, device=device) for _ in range(2))
    frequencies = 10000.0 ** -(torch.arange(0, head_size, 2, dtype=torch.float32, device=device) / head_size)
    angles = torch.outer(torch.arange(max_position, dtype=torch.float32, device=device), frequencies)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)
    return positions, query, key, head_size, head_size, cache, is_neox_style
