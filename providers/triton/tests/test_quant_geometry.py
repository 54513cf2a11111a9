"""When quantising loads may be of 16 bytes: every pointer and stride decides, each alone; and launches fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_triton import configuration, head_norms, quantization

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_provider_triton.variants import Launch

HALF, FP8 = torch.bfloat16, torch.float8_e4m3fn
LEAD, SIZE, HEAD = (3, 5), 64, 16


def laid(sizes: tuple[int, ...], odd: str = "", dtype: torch.dtype = HALF) -> torch.Tensor:
    """Return a tensor whose rows lie apart at aligned distances, with its address or a stride one element off."""
    strides = [1]
    for size in reversed(sizes[1:]):
        strides.insert(0, strides[0] * size + 16)
    strides = [-(-each // 16) * 16 if each > 1 else 1 for each in strides]
    if odd.startswith("stride"):
        strides[int(odd[-1])] += 1
    number = 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    memory = torch.zeros(number + 128, dtype=dtype)
    return memory.as_strided(sizes, strides, -(memory.data_ptr() // memory.element_size()) % 64 + (odd == "address"))


def solid(sizes: tuple[int, ...], odd: str = "", dtype: torch.dtype = HALF) -> torch.Tensor:
    """Return a contiguous tensor, at an address that is one element off if that is asked for."""
    number = torch.Size(sizes).numel()
    memory = torch.zeros(number + 128, dtype=dtype)
    first = -(memory.data_ptr() // memory.element_size()) % 64 + (odd == "address")
    return memory[first : first + number].view(sizes)


def scaled(odd: dict[str, str], size: int = SIZE) -> Launch:
    """Plan a quantisation by a given scale."""
    x, out = laid((*LEAD, size), odd.get("x", "")), solid((*LEAD, size), odd.get("out", ""), FP8)
    return quantization.scaled(x, out, solid((1,), odd.get("scale", ""), torch.float32), "sm_90", gated=False)


def grouped(odd: dict[str, str], size: int = SIZE) -> Launch:
    """Plan a quantisation of groups."""
    x, out = laid((*LEAD, 4 * size), odd.get("x", "")), solid((*LEAD, 2 * size), odd.get("out", ""), FP8)
    scales = solid((*LEAD, 2), odd.get("scale", ""), torch.float32)
    return quantization.grouped(x, out, scales, None, size, "sm_90", gated=True)


def norm(odd: dict[str, str], size: int = SIZE) -> Launch:
    """Plan a norm with quantisation."""
    x, residual = (laid((*LEAD, size), odd.get(name, "")) for name in ("x", "residual"))
    out, total = solid((*LEAD, size), odd.get("out", ""), FP8), solid((*LEAD, size), odd.get("total", ""))
    scale = solid((*LEAD, 1), odd.get("scale", ""), torch.float32)
    weight = solid((size,), odd.get("weight", ""))
    return quantization.norm(x, residual, weight, 1e-6, out, total, scale, None, "sm_90", dynamic=True)


def heads(odd: dict[str, str], size: int = HEAD) -> Launch:
    """Plan normalised and turned heads."""
    query, key = (laid((3, number, size), odd.get(name, "")) for name, number in (("query", 4), ("key", 2)))
    outs = (solid((3, 4, size)), solid((3, 2, size)))
    weights = (solid((size,), odd.get("query_weight", "")), solid((size,), odd.get("key_weight", "")))
    positions, cache = torch.zeros(3, dtype=torch.int64), laid((8, size), odd.get("cache", ""))
    given = (positions, query, key, *weights, 1e-6, size, size, cache, outs, "sm_90")
    return head_norms.plans(*given, neox=True)[0]


OPERANDS: dict[Callable[..., Launch], tuple[dict[str, str], ...]] = {
    scaled: ({"x": "address"}, {"x": "stride0"}, {"x": "stride1"}, {"out": "address"}),
    grouped: ({"x": "address"}, {"x": "stride0"}, {"x": "stride1"}, {"out": "address"}),
    norm: (
        {"x": "address"},
        {"x": "stride0"},
        {"residual": "address"},
        {"residual": "stride1"},
        {"out": "address"},
        {"total": "address"},
        {"weight": "address"},
    ),
    heads: ({"query": "address"}, {"key": "stride1"}, {"query_weight": "address"}, {"key_weight": "address"}),
}


@pytest.mark.parametrize("plan", OPERANDS)
def test_rows_at_16_bytes_are_quantised_by_16(plan: Callable[..., Launch]) -> None:
    """And scales, which are read and written one by one, narrow nothing wherever they lie."""
    assert plan({}).variant.wide
    assert plan({"scale": "address"}).variant.wide


@pytest.mark.parametrize(("plan", "odd"), [(plan, odd) for plan, all_of in OPERANDS.items() for odd in all_of])
def test_one_odd_operand_narrows_quantisation(plan: Callable[..., Launch], odd: dict[str, str]) -> None:
    """A pointer or a stride that is one element off: the program would fault, or read its neighbour."""
    assert not plan(odd).variant.wide


@pytest.mark.parametrize("plan", [scaled, grouped, norm])
def test_a_size_of_quantised_rows_counts_like_a_stride(plan: Callable[..., Launch]) -> None:
    """What is written is contiguous, so the size of a row or a group is its stride."""
    assert not plan({}, 60).variant.wide


def test_a_launch_of_quantisation_fits() -> None:
    """A lane for every element, and rows that are not cut, for sizes, dtypes and architectures of all kinds."""
    for arch in configuration.MACHINES:
        for kind in ("scaled", "grouped", "norm_quant", "fused_quant"):
            for size in (1, 32, 128, 576, 4096, 8192, 16384, 28672, 2**20):
                for number in (2, 4):
                    shape = configuration.choose(kind, arch, size, number, few=False)
                    block = shape._replace(rows=1) if kind == "scaled" else shape
                    assert configuration.fits(block if size > block.block else shape, arch, size), (arch, kind, size)


def test_two_launches_have_each_their_weight() -> None:
    """Where one position is for rows of which query and key have not as many, each is launched alone."""
    query, key, first, second = torch.ones(5, 4, HEAD), torch.ones(3, HEAD), torch.ones(HEAD), torch.ones(HEAD)
    cache: Any = torch.ones(8, HEAD)
    given = (torch.tensor([1]), query, key, first, second, 1e-6, HEAD, HEAD, cache, (query, key), "sm_90")
    launches = head_norms.plans(*given, neox=True)
    assert [each.tensors[5] is weight for each, weight in zip(launches, (first, second), strict=True)] == [True, True]
