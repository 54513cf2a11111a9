"""8-bit floating-point numbers: their bits made of float32 values, and the scales that bring rows into their range.

A format is known by the largest magnitude that is written in it: 448 (e4m3fn), 57344 (e5m2) or 224 (e4m3fnuz, whose own
largest is 240). Where no instruction of the GPU makes a format, or not as torch does, its bits are made by integers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def magnitude(v: tl.tensor) -> tl.tensor:
    """Return |v| of float32 as its bits, which are ordered as the values are, NaN above everything."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit  # type: ignore[untyped-decorator]
def spelled(v: tl.tensor, LIMIT: tl.constexpr) -> tl.tensor:
    """Return the bits of a format for float32 values within its limit: to nearest even, made by integers.

    A subnormal result is the low end of a sum: with a number whose last place is the format's smallest, which rounds.
    """
    mantissa: tl.constexpr = 2 if LIMIT == 57344 else 3
    bias: tl.constexpr = 15 if LIMIT == 57344 else 7 if LIMIT == 448 else 8
    cut: tl.constexpr = 23 - mantissa
    size = magnitude(v)
    ahead = size + ((1 << (cut - 1)) - 1) + ((size >> cut) & 1)
    normal = (ahead >> cut) - ((127 - bias) << mantissa)
    ruler = tl.full([], (127 + 24 - bias - mantissa) << 23, tl.int32)
    summed = size.to(tl.float32, bitcast=True) + ruler.to(tl.float32, bitcast=True)
    subnormal = summed.to(tl.int32, bitcast=True) - ruler
    code = tl.where(size < ((128 - bias) << 23), subnormal, normal)
    sign = (v.to(tl.int32, bitcast=True) >> 24) & 0x80
    if LIMIT == 224:
        sign = tl.where(code == 0, 0, sign)  # the place of its negative zero is that of its NaN
        code = tl.where(size > 0x7F800000, 0x80, code | sign)
    else:
        code = tl.where(size > 0x7F800000, 0x7F, code) | sign
    return code.to(tl.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def quantized(v: tl.tensor, LIMIT: tl.constexpr, INSTRUCTION: tl.constexpr) -> tl.tensor:
    """Return the bits of a format for float32 values: saturated, to nearest even, NaN for NaN."""
    v = tl.maximum(v, -1.0 * LIMIT, tl.PropagateNan.ALL)
    v = tl.minimum(v, 1.0 * LIMIT, tl.PropagateNan.ALL)
    if not INSTRUCTION:
        bits = spelled(v, LIMIT)
    elif LIMIT == 57344:
        bits = v.to(tl.float8e5).to(tl.uint8, bitcast=True)
    else:
        bits = v.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return bits


@triton.jit  # type: ignore[untyped-decorator]
def token_scale(largest: tl.tensor, LIMIT: tl.constexpr) -> tl.tensor:
    """Return the scale of a row or a tensor by the bits of its largest magnitude."""
    scale = tl.div_rn(largest.to(tl.float32, bitcast=True), 1.0 * LIMIT)
    return tl.maximum(scale, 1.0 / (LIMIT * 512), tl.PropagateNan.ALL)


@triton.jit  # type: ignore[untyped-decorator]
def bounded(largest: tl.tensor, bound: tl.tensor, BOUNDED: tl.constexpr) -> tl.tensor:
    """Return the bits of a largest magnitude, or of the bound if that is less."""
    if BOUNDED:
        least = tl.minimum(largest.to(tl.float32, bitcast=True), tl.load(bound), tl.PropagateNan.ALL)
        largest = least.to(tl.int32, bitcast=True)
    return largest


@triton.jit  # type: ignore[untyped-decorator]
def group_scale(largest: tl.tensor, LIMIT: tl.constexpr, POWER: tl.constexpr) -> tl.tensor:
    """Return the scale of a group by the bits of its largest magnitude; with POWER the power of two above it."""
    scale = tl.maximum(largest.to(tl.float32, bitcast=True), 1e-10, tl.PropagateNan.ALL)
    scale = tl.div_rn(scale, 1.0 * LIMIT)
    if POWER:
        bits = scale.to(tl.int32, bitcast=True)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
        scale = tl.where(bits >= 0x7F800000, scale, (exponent << 23).to(tl.float32, bitcast=True))
    return scale
