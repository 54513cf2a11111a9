"""Triton's interpreter made exact where it is not: bfloat16 and 8-bit floats, multiply-adds of one rounding.

Without this it cuts those dtypes off instead of rounding, and rounds twice in `fma`, so that a comparison says nothing.
Arithmetic in bfloat16 stays inexact and is refused: the kernels have none. A sum over a block is made in the order that
a launch of so many warps has, so that what depends on it shows. The interpreter also replaces Triton's language by its
own at every call of every function, which is most of its time; once a module is enough.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

ORDINARY = interpreter._convert_float
ORDINARY_BINARY = interpreter.InterpreterBuilder.binary_op
ORDINARY_PATCH = interpreter._patch_lang
ORDINARY_SUM = interpreter.ReduceOps.sum
DTYPES = {
    tl.float32: torch.float32,
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e4b8: torch.float8_e4m3fnuz,
    tl.float8e5: torch.float8_e5m2,
}
UNSIGNED = {4: np.uint32, 2: np.uint16, 1: np.uint8}
INTEGERS = {4: torch.int32, 2: torch.int16, 1: torch.int8}


def convert(data: Any, source: Any, target: Any, mode: Any) -> Any:
    """Return numbers of one dtype as those of another, to nearest even, as torch does it; bits in, bits out.

    What is too large for 8 bits is their largest, as instructions have it that saturate (`cvt.rn.satfinite`).
    """
    if source not in DTYPES or target not in DTYPES:
        return ORDINARY(data, source, target, mode)
    number = source.primitive_bitwidth // 8
    bits = np.array(data, order="C", copy=True).view(f"i{number}")
    numbers, size = torch.from_numpy(bits).view(DTYPES[source]), target.primitive_bitwidth // 8
    if size == 1:
        most = torch.finfo(DTYPES[target]).max
        numbers = numbers.float().clamp(-most, most)
    converted = numbers.to(DTYPES[target])
    return converted.view(INTEGERS[size]).numpy().view(UNSIGNED[size]).reshape(np.shape(data))


def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z with the product exact, as it is in float64."""
    del builder
    with np.errstate(all="ignore"):
        result = (x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)).astype(np.float32)
    return interpreter.TensorHandle(result, z.dtype.scalar)


def binary(builder: Any, left: Any, right: Any, op: Any) -> Any:
    """Do what the interpreter does, unless it would compute with the bits of bfloat16 as if they were a number.

    What a comparison gives is a truth value; the interpreter takes it for a number once it is spread over a block.
    """
    if left.dtype.scalar == tl.bfloat16:
        message = f"{op.__name__} of bfloat16: the interpreter cannot do that; compute in float32 and round"
        raise TypeError(message)
    with np.errstate(all="ignore"):
        result = ORDINARY_BINARY(builder, left, right, op)
    if result.data.dtype == np.bool_:
        result.dtype = tl.int1
    return result


class Patched:
    """Stands for Triton's language as the interpreter has it, which is never undone."""

    modules: ClassVar[set[int]] = set()

    def __init__(self, function: Any) -> None:
        if id(function.__globals__) not in Patched.modules:
            Patched.modules.add(id(function.__globals__))
            ORDINARY_PATCH(function)

    def restore(self) -> None:
        """Leave it as it is."""


class Sums:
    """The order of a sum over the rows of a block, as threads have it that hold 8 neighbours each.

    Attributes:
        warps: of the launch.
    """

    warps = 4

    @classmethod
    def of_rows(cls, data: Any) -> Any:
        """Return the sums of the rows of a block: in each thread one after the other, then across threads by halves."""
        rows, size = data.shape
        threads = max(1, min(size, cls.warps * 32 // rows))
        vector = max(1, min(8, size // threads))
        parts = data.reshape(rows, size // (threads * vector), threads, vector)
        total = np.zeros((rows, threads), np.float32)
        for repetition in range(parts.shape[1]):
            for element in range(vector):
                total = total + parts[:, repetition, :, element]
        while total.shape[1] > 1:
            half = total.shape[1] // 2
            total = total[:, :half] + total[:, half:]
        return total[:, 0]


def reduced(reduction: Any, tensor: Any) -> Any:
    """Return a sum over an axis; of rows longer than a pair in the order of a launch."""
    data = tensor.handle.data
    if reduction.axis != 1 or data.ndim != 2 or data.dtype != np.float32:
        return ORDINARY_SUM(reduction, tensor)
    with np.errstate(all="ignore"):
        return reduction.to_tensor(Sums.of_rows(data), tensor.dtype)


def install() -> None:
    """Put these in the interpreter's place, for this process."""
    interpreter._patch_lang = Patched
    interpreter.ReduceOps.sum = reduced
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_fma = fma
    interpreter.InterpreterBuilder.binary_op = binary


def uninstall() -> None:
    """Give the rounding back to the interpreter, to see what that comes to."""
    interpreter._convert_float = ORDINARY
