"""Which dimensions of an op's arguments grow with the number of tokens, found by asking its generator twice."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir import IrOp

_FEW: Final = 3
_MORE: Final = 5


@dataclass(frozen=True, slots=True)
class BatchDim:
    """One dimension that follows the number of tokens.

    Attributes:
        argument: position of the argument, or of the result.
        dim: its dimension.
        factor: elements per token.
        rest: elements that are there without any token.
    """

    argument: int
    dim: int
    factor: int
    rest: int

    def size(self, tokens: Any) -> Any:
        """Return its size for a number of tokens, which may be a symbol."""
        size = tokens if self.factor == 1 else tokens * self.factor
        return size + self.rest if self.rest else size


def of_inputs(op: IrOp, keywords: Mapping[str, Any] | None = None) -> tuple[BatchDim, ...]:
    """Return the batch dimensions of an op's arguments.

    Args:
        op: the op; it has an input generator.
        keywords: what else its generator is given.
    """
    return _of_inputs(op, tuple(sorted((keywords or {}).items())))


@functools.lru_cache(maxsize=1024)
def _of_inputs(op: IrOp, keywords: tuple[tuple[str, Any], ...]) -> tuple[BatchDim, ...]:
    """Return the batch dimensions; every case of an op asks for the same few."""
    few, more = (_generate(op, tokens, dict(keywords)) for tokens in (_FEW, _MORE))
    return _compare(few, more)


def of_outputs(op: IrOp, keywords: Mapping[str, Any] | None = None) -> tuple[BatchDim, ...]:
    """Return the batch dimensions of an op's results, native's."""
    few, more = (results(op.run_fake(*_generate(op, tokens, keywords))) for tokens in (_FEW, _MORE))
    return _compare(few, more)


def results(value: Any) -> tuple[Any, ...]:
    """Return what an op returned as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _generate(op: IrOp, tokens: int, keywords: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return the arguments for a number of tokens, leaving torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        return op.generate_inputs(num_tokens=tokens, **(keywords or {}))


def _compare(few: Sequence[Any], more: Sequence[Any]) -> tuple[BatchDim, ...]:
    """Return the dimensions that differ between two calls."""
    found = []
    for argument, (a, b) in enumerate(zip(few, more, strict=True)):
        if not isinstance(a, torch.Tensor) or a.dim() != b.dim():
            continue
        for dim, (small, large) in enumerate(zip(a.shape, b.shape, strict=True)):
            if small != large:
                factor = (large - small) // (_MORE - _FEW)
                found.append(BatchDim(argument, dim, factor, small - _FEW * factor))
    return tuple(found)
