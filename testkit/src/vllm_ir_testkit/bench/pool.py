"""Inputs in such numbers that a run over them finds none in the cache, and copies to make them fresh again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SETS: Final = 2048
"""Sets that a pool holds at most: more Python objects would be what is measured."""

MOST_BYTES: Final = 2**30
"""Bytes that the sets of a pool hold at most, two sets apart."""

UNKNOWN_CACHE: Final = 64 * 2**20
"""Bytes of cache that are taken for granted where the machine does not tell."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Sets of arguments for calls of one op.

    Attributes:
        sets: the arguments of each call, by position.
        first: a copy of the first set, from which all were made.
        donated: positions of the arguments that calls may write.
        bytes: what all sets hold.
    """

    sets: list[tuple[Any, ...]]
    first: tuple[Any, ...]
    donated: tuple[int, ...]
    bytes: int

    @classmethod
    def make(cls, args: Sequence[Any], shared: Sequence[int], donated: Sequence[int], cache: int) -> Pool:
        """Return as many copies of a call's arguments as exceed the cache twice.

        Args:
            args: of one call.
            shared: positions of arguments that all calls share, such as weights.
            donated: positions of arguments that calls may write.
            cache: bytes of the last cache.
        """
        one = sum(x.nbytes for i, x in enumerate(args) if isinstance(x, torch.Tensor) and i not in shared)
        wanted = math.ceil(2 * cache / max(one, 1))
        count = max(2, min(wanted, MOST_SETS, MOST_BYTES // max(one, 1)))
        sets = [tuple(_copy(x) if i not in shared else x for i, x in enumerate(args)) for _ in range(count)]
        return cls(sets, tuple(_copy(x) for x in args), tuple(donated), one * count)

    def refill(self) -> None:
        """Give every argument that calls may write its first values again; not for inside a timed region."""
        for args in self.sets:
            for i in self.donated:
                args[i].copy_(self.first[i])


def cache_bytes(device: torch.device) -> int:
    """Return the size of a device's last cache."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", UNKNOWN_CACHE))
    return cpu_cache_bytes(Path("/sys/devices/system/cpu/cpu0/cache"))


def cpu_cache_bytes(folder: Path) -> int:
    """Return the size of the largest cache that Linux lists in a folder, such as "32768K"."""
    sizes = []
    for file in folder.glob("index*/size"):
        text = file.read_text(encoding="utf-8").strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        digits = text.rstrip("KM")
        sizes.append(int(digits) * unit if digits.isdigit() else 0)
    return max(sizes, default=0) or UNKNOWN_CACHE


def _copy(x: Any) -> Any:
    """Return a copy of a tensor, and anything else as it is."""
    return x.clone() if isinstance(x, torch.Tensor) else x
