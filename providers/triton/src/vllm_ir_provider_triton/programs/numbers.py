"""Functions of numbers as C libraries compute them, rows as they lie in memory, and the sum over a row.

Everything is float32 between a load and the rounding that native has. Nothing may be contracted: where one rounding
takes the place of two, it is written as `fma`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def exp(v: tl.tensor) -> tl.tensor:
    """Return e to the power of v within two units of float32; Triton's own is off by some |v| / 2 units.

    v log2(e) is cut into a whole number and a rest, with a constant of two parts so that the rest is exact.
    """
    whole = tl.floor(v * 1.4426950408889634 + 0.5)
    rest = tl.fma(v, 1.44269502162933349609375, -whole)
    rest = tl.fma(v, 1.92596299112661746887e-8, rest)
    power = tl.exp2(rest) * tl.exp2(whole - 1.0) * 2.0
    return tl.where(v < -104.0, 0.0, tl.where(v > 89.0, float("inf"), power))


@triton.jit  # type: ignore[untyped-decorator]
def tanh(v: tl.tensor) -> tl.tensor:
    """Return the hyperbolic tangent of v within two units of float32: near zero by its series, elsewhere by exp."""
    size = tl.abs(v)
    square = v * v
    series = tl.fma(square, -6.540150381624699e-3, 2.1262383088469505e-2)
    series = tl.fma(square, series, -5.3898826241493225e-2)
    series = tl.fma(square, series, 1.3333024084568024e-1)
    series = tl.fma(square, series, -3.333333134651184e-1)
    near = tl.fma(v, square * series, v)
    far = 1.0 - tl.div_rn(2.0, exp(size + size) + 1.0)
    return tl.where(size < 0.55, near, tl.where(v < 0.0, -far, far))


@triton.jit  # type: ignore[untyped-decorator]
def rounded(v: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """Return float32 values as they are after a rounding to a dtype."""
    return v.to(dtype).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def offsets(
    row: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    ONE_STRIDE: tl.constexpr,
) -> tl.tensor:
    """Return where rows begin: leading dimensions [.., size1, size2] with their strides, in elements."""
    if ONE_STRIDE:
        place = row * stride0
    else:
        outer = row // size2
        place = outer // size1 * stride0 + outer % size1 * stride1 + row % size2 * stride2
    return place


@triton.jit  # type: ignore[untyped-decorator]
def row_sums(v: tl.tensor, ROWS: tl.constexpr, HALVINGS: tl.constexpr) -> tl.tensor:
    """Return the sums of the rows of v [ROWS, 2 ** HALVINGS], or [ROWS, anything] for no halvings.

    With halvings, neighbours are added to each other, then neighbouring sums, and so on. Two numbers have one sum in
    either order, so the bits do not depend on which thread holds what: not on warps, not on how wide loads are. Zeros
    behind a row change nothing, so they do not depend on the size of the block either.
    """
    if HALVINGS == 0:
        total = tl.sum(v, axis=1)
    else:
        for _ in tl.static_range(HALVINGS):
            v = tl.sum(tl.reshape(v, [ROWS, v.shape[1] // 2, 2]), axis=2)
        total = tl.reshape(v, [ROWS])
    return total
