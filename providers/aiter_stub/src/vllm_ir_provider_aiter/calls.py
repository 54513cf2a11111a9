"""One function an op: lay tensors out as AITER takes them, call it, and give back what the op means.

What may be called at all is left to `predicates`. Without rows AITER is not called: its grid would have no blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from vllm_ir_provider_aiter.errors import WrongTokens
from vllm_ir_provider_aiter.library import call
from vllm_ir_provider_aiter.predicates import dense
from vllm_ir_provider_aiter.symbols import CALLED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

DONATED: Final = True
KEPT: Final = False
NOPE_LAST: Final = False
"""AITER turns the first elements of a head, as the op means, and leaves the others as they are."""
ROUNDED: Final = 1
"""AITER's name for norms that round the normalised value before the weight, and to nearest: "model-sensitive"."""

MOST_BYTES: Final = 2**31
"""AITER's norms count bytes in 32 bits, so rows that span more are given in parts."""


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, variance_size: None = None) -> Tensor:
    """Return rows of x over their root mean square, times the weight, as a new contiguous tensor."""
    del variance_size
    if not x.numel():
        return x.new_empty(x.shape)
    rows = x.view(-1, x.shape[-1])
    name = CALLED["rms_norm"].name
    parts: list[Tensor] = [
        call(name, rows[part], weight, epsilon, use_model_sensitive_rmsnorm=ROUNDED) for part in _parts(rows)
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).contiguous().view(x.shape)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor, epsilon: float, variance_size: None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum and the sum rounded to x's dtype, which is what is normalised here, as new tensors.

    Raises:
        WrongTokens: x and the residual are not of one shape.
    """
    del variance_size
    if x.shape != x_residual.shape:
        got, wanted = (each.numel() // each.shape[-1] for each in (x_residual, x))
        raise WrongTokens(op="fused_add_rms_norm", parameter="x_residual", got=got, wanted=f"{wanted}, as x")
    out, total = x.new_empty(x.shape), x.new_empty(x.shape)
    if not x.numel():
        return out, total
    rows, residual, outs, totals = (each.view(-1, x.shape[-1]) for each in (x, x_residual, out, total))
    name = CALLED["fused_add_rms_norm"].name
    for part in _parts(rows, residual):
        given = (outs[part], rows[part], residual[part], totals[part], weight, epsilon)
        call(name, *given, use_model_sensitive_rmsnorm=ROUNDED)
    return out, total


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up, as a new contiguous tensor."""
    out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    if out.numel():
        call(CALLED["silu_and_mul"].name, out, x)
    return out


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
    donated: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key turned, in their own memory if they are donated, contiguous and apart.

    AITER wants cosines and sines as two whole caches, which would be copied out of this one at every call. Instead the
    rows of the tokens are taken out of it, and AITER is told that token i is at position i of those.

    Raises:
        WrongTokens: query or key are not of as many tokens as there are positions.
    """
    tokens = positions.numel()
    for parameter, x in (("query", query), ("key", key)):
        _check_tokens(parameter, x, head_size, tokens)
    outs = _results(query, key, donated)
    if not tokens or not query.numel() or not key.numel():
        return outs
    angles = cos_sin_cache.index_select(0, positions.flatten()).to(query.dtype)
    cos, sin = (half.contiguous() for half in angles.split(rotary_dim // 2, dim=-1))
    steps = torch.arange(tokens, dtype=torch.int64, device=query.device)
    turned = (each.view(tokens, -1) for each in outs)
    call(CALLED["rotary_embedding"].name, steps, *turned, head_size, cos, sin, is_neox_style, NOPE_LAST)
    return outs


def _parts(*matrices: Tensor) -> Iterator[slice]:
    """Yield slices of rows whose bytes AITER can count in every matrix; nearly always there is one of all rows."""
    rows, size = matrices[0].shape
    widest = max(max(each.stride(0), size) * each.element_size() for each in matrices)
    step = max(1, MOST_BYTES // widest)
    yield from (slice(start, start + step) for start in range(0, rows, step))


def _results(query: Tensor, key: Tensor, donated: bool) -> tuple[Tensor, Tensor]:
    """Return what AITER turns in place: the donated tensors, or copies of what must stay or lies otherwise."""
    if donated and dense(query) and dense(key) and _apart(query, key):
        return query, key
    copied = (each.new_empty(each.shape).copy_(each) for each in (query, key))
    return next(copied), next(copied)


def _apart(first: Tensor, second: Tensor) -> bool:
    """Tell whether two contiguous tensors share no memory."""
    one, other = first.data_ptr(), second.data_ptr()
    return one + first.numel() * first.element_size() <= other or other + second.numel() * second.element_size() <= one


def _check_tokens(parameter: str, x: Tensor, head_size: int, tokens: int) -> None:
    """Raise unless each token has its rows, or one position is for all: where native would raise, AITER would not."""
    rows = x.numel() // x.shape[-1]
    headed = x.dim() > 2 and x.shape[-1] == head_size  # noqa: PLR2004 - tokens, heads and their elements
    if tokens in (1, rows) or (headed and rows == tokens * x.shape[-2]):
        return
    raise WrongTokens(op="rotary_embedding", parameter=parameter, got=rows, wanted=f"{tokens}, as there are positions")
