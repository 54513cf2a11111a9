"""How a tensor lies in memory: the same values, seen through other strides and offsets.

Which tensors of a call are laid out so is left to `cases`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def contiguous(x: Tensor) -> Tensor:
    """Return the tensor as it is."""
    return x


def packed(x: Tensor) -> Tensor:
    """Return the middle third of rows three times as wide, as q, k and v lie in one projection."""
    if x.dim() < 2:  # noqa: PLR2004 - a row has no row stride
        return x
    size = x.shape[-1]
    wide = torch.full((*x.shape[:-1], 3 * size), 7.0, device=x.device).to(x.dtype)
    view = wide[..., size : 2 * size]
    return view.copy_(x)


def gapped(x: Tensor) -> Tensor:
    """Return rows with a gap of five elements behind each, so that none but the first is aligned."""
    if x.dim() < 2:  # noqa: PLR2004 - a row has no row stride
        return x
    size = x.shape[-1]
    wide = torch.full((*x.shape[:-1], size + 5), 7.0, device=x.device).to(x.dtype)
    return wide[..., :size].copy_(x)


def transposed(x: Tensor) -> Tensor:
    """Return a tensor whose first and last dimension lie the other way round in memory."""
    if x.dim() < 2:  # noqa: PLR2004 - there is nothing to exchange
        return x
    turned = torch.empty(x.transpose(0, -1).shape, dtype=x.dtype, device=x.device)
    return turned.transpose(0, -1).copy_(x)


def stepped(x: Tensor) -> Tensor:
    """Return every second element of rows twice as long."""
    if x.dim() < 1:
        return x
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 7.0, device=x.device).to(x.dtype)
    return wide[..., ::2].copy_(x)


def shifted(x: Tensor) -> Tensor:
    """Return a contiguous tensor that begins one element into its storage, so that it is aligned to no vector."""
    longer = torch.full((x.numel() + 2,), 7.0, device=x.device).to(x.dtype)
    return longer[1 : 1 + x.numel()].view(x.shape).copy_(x)


def repeated(x: Tensor) -> Tensor:
    """Return the first row for every token, as `expand` makes it: stride 0."""
    if x.dim() < 2 or not x.shape[0]:  # noqa: PLR2004 - there is no row to repeat
        return x
    return x[:1].expand(x.shape)


LAYOUTS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "contiguous": contiguous,
    "packed": packed,
    "gapped": gapped,
    "transposed": transposed,
    "stepped": stepped,
    "shifted": shifted,
    "repeated": repeated,
}
"""Layouts by name; the first is the plain one."""
