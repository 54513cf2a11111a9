"""8-bit floating-point formats, as kernels write them and as the interpreter has them, against torch's own cast."""

from __future__ import annotations

import exactness
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from vllm_ir_provider_triton.programs.fp8 import quantized
from vllm_ir_provider_triton.variants import LIMITS

FORMATS = {448: torch.float8_e4m3fn, 57344: torch.float8_e5m2, 224: torch.float8_e4m3fnuz}
BLOCK = 1 << 16


@triton.jit  # type: ignore[untyped-decorator]
def cast(out: tl.tensor, x: tl.tensor, LIMIT: tl.constexpr, INSTRUCTION: tl.constexpr, SIZE: tl.constexpr) -> None:  # noqa: N803 - constants of Triton
    """Quantise numbers."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + place, quantized(tl.load(x + place), LIMIT, INSTRUCTION))


def every_number(dtype: torch.dtype) -> torch.Tensor:
    """Return all numbers of bfloat16 and float16, what lies around every boundary of a format, and random bits."""
    bits = torch.arange(65536).to(torch.int32).to(torch.int16)
    codes = torch.arange(256).to(torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()].unique()
    boundaries = torch.cat((finite, (finite[1:] + finite[:-1]) / 2)).view(torch.int32)
    around = (boundaries[:, None] + torch.arange(-3, 4, dtype=torch.int32)).flatten().view(torch.float32)
    random = torch.randint(-(2**31), 2**31, (3 * BLOCK,)).to(torch.int32).view(torch.float32)
    found = torch.cat((bits.view(torch.bfloat16).float(), bits.view(torch.float16).float(), around, random))
    return torch.cat((found, found.new_zeros(-found.numel() % BLOCK)))


def agree(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Tell whether numbers have the same bits, NaN as NaN."""
    return torch.equal(torch.where(got.float().isnan(), 0, got.view(torch.uint8)), _code(wanted)) and torch.equal(
        got.float().isnan(), wanted.float().isnan()
    )


def _code(x: torch.Tensor) -> torch.Tensor:
    """Return the bits of numbers, zeros for NaN."""
    return torch.where(x.float().isnan(), 0, x.view(torch.uint8))


@pytest.mark.parametrize("instruction", [False, True])
@pytest.mark.parametrize("limit", FORMATS)
def test_every_format_is_written_as_torch_casts(limit: int, instruction: bool) -> None:
    """By integers, and by what stands for an instruction; e4m3fnuz has none."""
    x, dtype = every_number(FORMATS[limit]), FORMATS[limit]
    if instruction and limit == LIMITS["float8_e4m3fnuz"]:
        x = x[:0]
    out = torch.zeros(x.numel(), dtype=torch.uint8)
    if x.numel():
        cast[x.numel() // BLOCK,](out, x, limit, instruction, BLOCK)
    assert agree(out.view(dtype), x.clamp(-limit, limit).to(dtype))


NAMES = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5, torch.float8_e4m3fnuz: tl.float8e4b8}


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16, torch.float32])
def test_the_interpreter_rounds_to_8_bits_as_torch_does(source: torch.dtype, dtype: torch.dtype) -> None:
    """Every number of a half, and every boundary from float32; back again all 256 are what they are."""
    half = source.itemsize == 2
    x = torch.arange(65536).to(torch.int32).to(torch.int16).view(source) if half else every_number(dtype)
    kinds = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}
    bits = x.view(torch.int16 if half else torch.int32).numpy()
    got = torch.from_numpy(exactness.convert(bits, kinds[source], NAMES[dtype], None)).view(dtype)
    most = torch.finfo(dtype).max
    assert agree(got, x.float().clamp(-most, most).to(dtype))
    codes = np.arange(256, dtype=np.uint8)
    back = torch.from_numpy(exactness.convert(codes, NAMES[dtype], kinds[source], None).view(f"i{source.itemsize}"))
    assert torch.equal(
        back.view(source).nan_to_num(7.0), torch.from_numpy(codes).view(dtype).to(source).nan_to_num(7.0)
    )


@pytest.mark.usefixtures("inexact")
def test_without_our_rounding_the_interpreter_cuts_8_bits_off() -> None:
    """So a comparison in these dtypes without it is worthless."""
    x = every_number(torch.float8_e4m3fn)[:BLOCK]
    out = torch.zeros(BLOCK, dtype=torch.uint8)
    cast[1,](out, x, 448, True, BLOCK)  # noqa: FBT003 - as a launch has it
    assert not agree(out.view(torch.float8_e4m3fn), x.clamp(-448, 448).to(torch.float8_e4m3fn))
