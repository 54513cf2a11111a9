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
    read: list[tuple[int, int]] = []
    given: list[tuple[int, int]] = []
    for i, tensor in _tensors(args):
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            return False
        mine = span(tensor)
        if mine[0] == mine[1]:
            continue
        donated = i in written
        for begin, end in given if not donated else (*given, *read):
            if mine[0] < end and begin < mine[1]:
                return False
        (given if donated else read).append(mine)
    return True


def share(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors with strides lie in the same memory, be it only between each other's elements."""
    mine, others = span(one), span(other)
    return mine[0] < others[1] and others[0] < mine[1] and mine[0] != mine[1] and others[0] != others[1]


def span(x: Tensor) -> tuple[int, int]:
    """Return the addresses between which a tensor lies, the second behind its last element; one twice for none."""
    begin, elements = x.data_ptr(), x.numel()
    if elements and not x.is_contiguous():
        elements = 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
    return begin, begin + elements * x.element_size()


def storage_of(tensor: Tensor) -> int | None:
    """Return the identity of a tensor's memory, or None for one that has none of its own, such as a sparse one."""
    import torch

    # No public name tells of a tensor without storage, nor two storages of a graph's stand-ins apart.
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else None  # noqa: SLF001 - as just said


def _tensors(args: Sequence[Any]) -> Iterator[tuple[int, Tensor]]:
    """Yield the tensors of a call, those in lists among them, with the positions of their arguments."""
    import torch

    for i, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            yield i, value
        elif isinstance(value, (list, tuple)):
            for each in value:
                if isinstance(each, torch.Tensor):
                    yield i, each
