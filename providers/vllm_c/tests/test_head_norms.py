"""Heads that are normalised and turned in one kernel, against native, on the CPU from the same sources and launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_vllm_c import kernels
from vllm_ir_provider_vllm_c.predicates import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[..., None]

OP = "fused_qk_norm_rope"
EPSILON = 1e-6
NEOX = True


@pytest.fixture
def check(native: Callable[..., Any], matches: Callable[..., None], cpu: object) -> Check:
    """Give a comparison with native that also holds inputs unwritten, and donated ones rightly written.

    A rotation subtracts, so a normalised value that is one unit off shows as more units of a small difference: 16-bit
    results are held to the op's tolerance, and all but a few of them to the same bits.
    """
    del cpu

    def nearly(got: Any, expected: Any) -> None:
        """Compare two pairs of results."""
        if expected[0].dtype == torch.float32:
            matches(OP, got, expected)
            return
        for one, other in zip(got, expected, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            apart = (one.float() - other.float()).abs()
            largest = other.float().abs().amax() if other.numel() else 0.0
            assert not (apart > 2 * torch.finfo(one.dtype).eps * largest).any()
            wrong = int((apart > 0).sum())
            assert wrong <= max(4, 1e-3 * one.numel()), f"{wrong} of {one.numel()} differ"

    def compare(positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *rest: Any) -> None:
        """Compare one call, and the same call with its activations donated."""
        expected = native(OP, positions, query, key, *rest)
        before = query.clone(), key.clone()
        nearly(kernels.functional_fused_qk_norm_rope(positions, query, key, *rest), expected)
        assert torch.equal(query, before[0])
        assert torch.equal(key, before[1])
        given = query.clone().contiguous(), key.clone().contiguous()
        got = kernels.fused_qk_norm_rope.impl_fn(positions, *given, *rest)
        nearly(got, expected)
        assert [one is other for one, other in zip(got, given, strict=True)] == [True, True]

    return compare


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("head_size", "rotary_dim"), [(128, 128), (64, 32), (80, 20), (16, 6), (2, 2), (7, 4), (576, 64)]
)
def test_heads_match_native(neox: bool, dtype: torch.dtype, head_size: int, rotary_dim: int, check: Check) -> None:
    """Whole and partial rotation, weights and caches of every kind, heads packed or apart, of one lane to a warp."""
    heads = torch.randn(6, 5, head_size).to(dtype)
    shapes = (
        (heads[:, :3].flatten(1), heads[:, 3:].flatten(1)),
        (heads[:, :3], heads[:, 3:]),
        (heads.flatten(1)[:, : 3 * head_size], heads.flatten(1)[:, 3 * head_size :]),
    )
    weights = (torch.randn(head_size).to(dtype), torch.randn(head_size), None)
    for i, (query, key) in enumerate(shapes):
        for cache_dtype in (dtype, torch.float32):
            cache = torch.randn(50, rotary_dim).to(cache_dtype)
            positions = torch.randint(0, 50, (6,)).to(torch.int64 if i else torch.int32)
            rest = (weights[i], weights[i - 1], EPSILON, head_size, rotary_dim, cache, neox)
            check(positions, query, key, *rest)


def test_a_head_out_of_line_is_read_number_by_number(check: Check, cpu: Any) -> None:
    """Where query, a weight or the cache begins between two packs, and where nothing does."""
    for query, weight, row in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)):
        x = torch.randn(4 * 64 + query).bfloat16()[query:].view(4, 64)
        cache = torch.randn(9 * 32 + row).bfloat16()[row:].view(9, 32)
        scale = torch.randn(32 + weight).bfloat16()[weight:]
        check(torch.arange(4), x, torch.randn(4, 32).bfloat16(), scale, None, EPSILON, 32, 32, cache, NEOX)
    functional = [each.expression for each in cpu.launches[::2]]
    assert functional == ["qk_norm_rope<__nv_bfloat16, 1, true>"] * 3 + ["qk_norm_rope<__nv_bfloat16, 4, true>"]


@pytest.mark.parametrize("sizes", [((8, 16), (2, 16)), ((5, 64), (3, 2, 16)), ((16,), (4, 64)), ((4, 64), (4, 16))])
def test_one_position_turns_all_heads(sizes: tuple[tuple[int, ...], ...], check: Check) -> None:
    """Query and key may then have rows as they like, with a weight of their own each."""
    query, key = (torch.randn(each) for each in sizes)
    weights = (torch.randn(16), torch.randn(16))
    check(torch.tensor([5]), query, key, *weights, EPSILON, 16, 16, torch.randn(8, 16), NEOX)


def test_special_values_in_heads_are_as_native(check: Check) -> None:
    """A head of zeros, one with a NaN, one with an infinity, and extremes; only their own heads are hurt."""
    for dtype in DTYPES:
        query = torch.randn(4, 64).to(dtype)
        query[0, :16], query[1, 3], query[3, 0] = 0.0, torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
        check(torch.arange(4), query, query[:, :16], None, None, EPSILON, 16, 16, torch.randn(4, 16).to(dtype), NEOX)


@pytest.mark.usefixtures("cpu")
def test_a_nan_or_an_infinity_stays_in_its_head(native: Callable[..., Any]) -> None:
    """All other heads have native's values."""
    query = torch.randn(4, 64)
    query[1, 3], query[2, 20] = float("nan"), float("inf")
    rest = (torch.arange(4), query, query[:, 16:32], None, None, EPSILON, 16, 16, torch.randn(4, 16), NEOX)
    got, expected = kernels.functional_fused_qk_norm_rope(*rest), native(OP, *rest)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-5, atol=1e-5)
        assert int(one.isnan().sum()) > 0
        assert int(one[[0, 3]].isnan().sum()) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("cpu")
def test_a_head_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    """Alone or among others, and at any address."""
    query, cache = torch.randn(9, 3 * 40).to(dtype), torch.randn(9, 40)
    odd = torch.cat((torch.zeros(1, dtype=dtype), query.flatten()))[1:].view(9, 120)
    run = kernels.functional_fused_qk_norm_rope
    whole, key = run(torch.arange(9), query, query[:, :40], None, None, EPSILON, 40, 40, cache, NEOX)
    assert torch.equal(key, whole[:, :40])
    for rows, x in ((range(9), odd), (range(2, 4), query[2:4]), (range(8, 9), odd[8:])):
        part, _ = run(torch.tensor(rows), x, x[:, :40], None, None, EPSILON, 40, 40, cache, NEOX)
        assert torch.equal(part, whole[rows.start : rows.stop])


@pytest.mark.parametrize("position", [-1, 9])
@pytest.mark.usefixtures("cpu")
def test_heads_of_a_position_outside_the_cache_stop_the_grid(position: int) -> None:
    """As in rotary_embedding."""
    x = torch.ones(3, 32)
    with pytest.raises(RuntimeError, match="__trap"):
        kernels.functional_fused_qk_norm_rope(
            torch.tensor([0, position, 1]), x, x, None, None, EPSILON, 16, 16, torch.ones(9, 16), NEOX
        )


def test_no_heads_start_nothing(cpu: Any) -> None:
    """No tokens, or no key for any of them."""
    none = torch.randn(0, 64)
    rest = (None, None, EPSILON, 16, 16, torch.randn(9, 16), NEOX)
    kernels.functional_fused_qk_norm_rope(torch.zeros(0).long(), none, none, *rest)
    assert cpu.launches == []
    with pytest.raises(ValueError, match=r"fused_qk_norm_rope: query and key have \[4\] tokens, and there are 3"):
        kernels.functional_fused_qk_norm_rope(torch.zeros(3).long(), torch.ones(4, 32), torch.ones(4, 32), *rest)
