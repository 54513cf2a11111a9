"""Sizes that a graph leaves open: what they were when it was traced, and how questions about them leave no trace.

Like `torch_version`, written against what torch 2.11 to 2.14 have in common.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_SILENT: Final = logging.Logger("vllm_ir sizes", level=logging.CRITICAL + 1)  # noqa: LOG001 - nobody else is to have it
"""What is told to nobody."""


def hint_of(size: Any) -> int | None:
    """Return a size, one that is open as it was when the graph was traced; None for one that depends on data."""
    import torch

    if not isinstance(size, torch.SymInt):
        return int(size)
    found: int | None = size.node.hint
    return found


def surely_equal(size: Any, other: Any) -> bool:
    """Tell whether two sizes are equal by what is known of those that are open: one may be the other in more words.

    Reshapes say a size anew, "s1 // s2 * s2" for a multiple of s2.
    """
    import torch

    numbers = (torch.SymInt, torch.SymFloat)
    if torch.SymBool in (type(size), type(other)):
        return False
    if not isinstance(size, numbers) and not isinstance(other, numbers):
        return bool(size == other)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(size == other)


@contextlib.contextmanager
def forgetting_sizes(shape_env: Any) -> Iterator[None]:
    """Forget the sizes that depend on data and were made inside: torch wants to find each in the next result.

    Args:
        shape_env: what knows the sizes, or None.
    """
    if shape_env is None:
        yield
        return
    pending = shape_env.pending_fresh_unbacked_symbols
    before = list(pending)
    try:
        yield
    finally:
        pending[:] = before


def question_in(text: str) -> str:
    """Return what was asked of a size, such as "s0 > 7", out of what torch says where it must not be answered."""
    asked = text.rpartition(": ")[2] if text.startswith("Guard attempted") else text
    for answer in (" == True", " == False"):
        asked = asked.removesuffix(answer)
    return asked


class OpenBatches:
    """Makes of arguments with known sizes what a graph for all batches would have, in sizes of its own.

    Attributes:
        sizes: what knows the open sizes.
    """

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.sizes: Any = ShapeEnv()
        # A question that must not be answered is what is looked for, no accident to log.
        self.sizes.log = _SILENT
        self._mode = FakeTensorMode(shape_env=self.sizes)
        self._symbols: dict[int, Any] = {}

    def open(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor of the same kind, with a first size that is open and equal for equal first sizes.

        Args:
            tensor: a fake one with known sizes, of which the first is above one: one and zero are never left open.
        """
        import torch

        rows, *others = tensor.shape
        with self._mode:
            return torch.empty_strided(
                (self._symbol(int(rows)), *others), tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )

    def _symbol(self, size: int) -> Any:
        """Return the open size that stands for one."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        if size not in self._symbols:
            symbol = self.sizes.create_symbol(size, ConstantSource(f"batch_of_{size}"), DimDynamic.DYNAMIC)
            self._symbols[size] = self.sizes.create_symintnode(symbol, hint=size)
        return self._symbols[size]
