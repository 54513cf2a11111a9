"""What the compiled module's `quant` and `try_quant` are told, from the arguments of each op that quantises.

One function in there serves all of them, by what is quantised and where its scales come from; so the call of an op is
a tuple, which `quant_kernels` gives to the one and `torch_ops` to the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

Call: TypeAlias = tuple[object, ...]

PLAIN, NORM, ADD_NORM, GATED = range(4)
"""What is quantised: rows as they are, normalised, added and normalised, or gated; as in `csrc/abi.h`."""

GIVEN, _CHANNEL, TOKEN, TENSOR, GROUP = range(5)
"""Where a scale comes from; that there is one for each channel the kernel sees for itself."""

QUANTIZED: Final = {torch.float8_e4m3fn: 0, torch.float8_e4m3fnuz: 1, torch.float8_e5m2: 2}
"""The 8-bit dtypes by the number that the kernels have for them."""


def static(x: Tensor, scale: Tensor, dtype: torch.dtype, source: int) -> Call:
    """Return the call that quantises rows, or gated rows, over a given scale."""
    return _call(x, None, None, scale, source, GIVEN, dtype)


def dynamic(x: Tensor, per_token: bool, bound: Tensor | None, dtype: torch.dtype, source: int) -> Call:
    """Return the call that finds a scale for each row, or gated row, or for all."""
    return _call(x, None, None, bound, source, TOKEN if per_token else TENSOR, dtype)


def groups(x: Tensor, group_size: int, column_major: bool, power_of_two: bool, dtype: torch.dtype, source: int) -> Call:
    """Return the call that finds a scale for each group of rows, or of gated rows."""
    layout = (group_size, column_major, power_of_two)
    return (x, None, None, None, source, GROUP, QUANTIZED[dtype], *layout, 0.0, False, dtype, torch.float32)


def norm_static(x: Tensor, weight: Tensor | None, scale: Tensor, epsilon: float, dtype: torch.dtype) -> Call:
    """Return the call that quantises normalised rows over a given scale."""
    return _call(x, None, weight, scale, NORM, GIVEN, dtype, epsilon)


def norm_dynamic(
    x: Tensor, weight: Tensor | None, epsilon: float, per_token: bool, bound: Tensor | None, dtype: torch.dtype
) -> Call:
    """Return the call that finds a scale for each normalised row, or for all."""
    return _call(x, None, weight, bound, NORM, TOKEN if per_token else TENSOR, dtype, epsilon)


def sum_static(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    epsilon: float,
    dtype: torch.dtype,
    donated: bool,
) -> Call:
    """Return the call that quantises normalised sums over a given scale, and keeps the sums."""
    return _call(x, x_residual, weight, scale, ADD_NORM, GIVEN, dtype, epsilon, donated)


def sum_dynamic(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    per_token: bool,
    bound: Tensor | None,
    dtype: torch.dtype,
    donated: bool,
) -> Call:
    """Return the call that finds a scale for each normalised sum, or for all, and keeps the sums."""
    return _call(x, x_residual, weight, bound, ADD_NORM, TOKEN if per_token else TENSOR, dtype, epsilon, donated)


def _call(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    source: int,
    scaling: int,
    dtype: torch.dtype,
    epsilon: float = 0.0,
    donated: bool = False,
) -> Call:
    """Return the arguments by position, for rows without groups."""
    options = (0, False, False, epsilon, donated, dtype, torch.float32)
    return (x, residual, weight, scale, source, scaling, QUANTIZED[dtype], *options)
