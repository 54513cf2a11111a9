"""Whether tensors take the same memory, judged by the addresses between which they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


def lie_apart(args: Sequence[Any], written: Sequence[int]) -> bool:
    """Tell whether tensors that may be written share no memory with each other or with the other tensors of a call.

    Args:
        args: all arguments by position.
        written: positions of the tensors that may be written.

    Returns:
        False, too, where it cannot be told: while something is traced, and for tensors that stand for others or have
        no strides.
    """
    import torch

    if torch.compiler.is_compiling():
        return False
    spans: list[tuple[int, int, int]] = []
    for i, tensor in _tensors(args):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return False
        if tensor.numel():
            spans.append((i, *span(tensor)))
    return not any(
        one[0] in written and one is not other and one[1] < other[2] and other[1] < one[2]
        for one in spans
        for other in spans
    )


def share(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors with strides lie in the same memory, be it only between each other's elements."""
    if not one.numel() or not other.numel():
        return False
    mine, others = span(one), span(other)
    return mine[0] < others[1] and others[0] < mine[1]


def span(x: Tensor) -> tuple[int, int]:
    """Return the addresses between which the elements of a tensor lie, the second behind the last of them."""
    begin = x.data_ptr()
    reach = sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return begin, begin + (1 + reach) * x.element_size()


def _tensors(args: Sequence[Any]) -> Iterator[tuple[int, Tensor]]:
    """Yield the tensors of a call, those in lists among them, with the positions of their arguments."""
    import torch

    for i, value in enumerate(args):
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, torch.Tensor):
                yield i, each
