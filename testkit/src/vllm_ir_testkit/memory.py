"""The memory behind tensors: what it held before a call, what changed, and which tensors share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


def storage_bytes(x: Tensor) -> Tensor:
    """Return the whole memory that a tensor is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def share(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are views of one memory; those without elements share none."""
    return bool(a.numel() and b.numel() and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def same_place(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are the same elements of one memory in the same order."""
    return (
        share(a, b)
        and a.storage_offset() == b.storage_offset()
        and a.shape == b.shape
        and (a.stride() == b.stride() or (a.is_contiguous() and b.is_contiguous()))
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the memory behind a call's tensors held.

    Attributes:
        bytes: a copy by position of the argument; None for what is no tensor.
    """

    bytes: tuple[Tensor | None, ...]

    @classmethod
    def take(cls, args: Sequence[Any]) -> Snapshot:
        """Copy the memory behind every tensor."""
        return cls(tuple(storage_bytes(x).clone() if isinstance(x, torch.Tensor) else None for x in args))

    def changed(self, args: Sequence[Any], among: Iterable[int] | None = None) -> list[int]:
        """Return the positions of the arguments whose memory changed.

        Args:
            args: the same arguments.
            among: positions to look at; all when None.
        """
        positions = range(len(args)) if among is None else among
        return [
            i for i in positions if (was := self.bytes[i]) is not None and not torch.equal(was, storage_bytes(args[i]))
        ]

    def changed_around(self, args: Sequence[Any], position: int) -> bool:
        """Tell whether memory changed that the argument itself does not cover."""
        was, x = self.bytes[position], args[position]
        if was is None:
            return False
        elements = was.numel() // x.element_size()
        whole = elements * x.element_size()
        changed = (storage_bytes(x)[:whole] != was[:whole]).view(elements, x.element_size()).any(dim=-1)
        places = torch.arange(elements, device=x.device).as_strided(x.shape, x.stride(), x.storage_offset())
        changed[places.reshape(-1)] = False
        return bool(changed.any())
