"""Rotary embedding against complex numbers, against the model library's own, and row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from vllm_ir import ops

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MAX_POSITION = 50


def cache(rotary_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return cosines, then sines, of each position."""
    frequencies = 10000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.outer(torch.arange(MAX_POSITION, dtype=torch.float64), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1).to(dtype)


def turn(x: Tensor, positions: Tensor, rotary_dim: int, *, neox: bool) -> Tensor:
    """Return heads [tokens, heads, size] turned as complex numbers in double precision."""
    frequencies = 10000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.outer(positions.double(), frequencies)
    turned, kept = x[..., :rotary_dim].double(), x[..., rotary_dim:].double()
    half = rotary_dim // 2
    real, imaginary = (turned[..., :half], turned[..., half:]) if neox else (turned[..., ::2], turned[..., 1::2])
    product = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    parts = (product.real, product.imag)
    rotated = torch.cat(parts, dim=-1) if neox else torch.stack(parts, dim=-1).flatten(-2)
    return torch.cat((rotated, kept), dim=-1)


def steps(x: Tensor, positions: Tensor, table: Tensor, head_size: int, *, neox: bool) -> Tensor:
    """Return x turned by single steps, every product and sum rounded to x's dtype; x is [..., heads * size]."""
    rotary_dim = table.shape[-1]
    out = x.reshape(positions.numel(), -1, head_size).clone()
    for token, position in enumerate(positions.flatten().tolist()):
        cos, sin = table[position].to(x.dtype).chunk(2)
        for i in range(rotary_dim // 2):
            a, b = (i, i + rotary_dim // 2) if neox else (2 * i, 2 * i + 1)
            first, second = out[token, :, a].clone(), out[token, :, b].clone()
            out[token, :, a] = first * cos[i] - second * sin[i]
            out[token, :, b] = second * cos[i] + first * sin[i]
    return out.reshape(x.shape)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(8, 8), (8, 4), (6, 2), (64, 32)])
def test_complex_numbers(neox: bool, head_size: int, rotary_dim: int) -> None:
    """In double precision the result is that of a multiplication of complex numbers, and the rest of a head stays."""
    positions = torch.tensor([0, 3, 49, 3])
    query = torch.randn(4, 3, head_size, dtype=torch.float64)
    key = torch.randn(4, 1, head_size, dtype=torch.float64)
    table = cache(rotary_dim, torch.float64)
    got = ops.rotary_embedding(positions, query, key, head_size, rotary_dim, table, neox)
    for mine, x in zip(got, (query, key), strict=True):
        torch.testing.assert_close(mine, turn(x, positions, rotary_dim, neox=neox), rtol=1e-13, atol=1e-13)
        assert torch.equal(mine[..., rotary_dim:], x[..., rotary_dim:])
    assert torch.equal(got[0][0], query[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("table_dtype", [torch.float32, None], ids=str)
@pytest.mark.parametrize("neox", [True, False])
def test_rounding(dtype: torch.dtype, table_dtype: torch.dtype | None, neox: bool, lay: Any, same_bits: Any) -> None:
    """Every product and sum is rounded to the dtype of query and key, and so is a cache of another, in any layout."""
    positions = torch.tensor([0, 7, 7, 49, 1])
    query, key = lay(torch.randn(5, 16).to(dtype)), lay(torch.randn(5, 8).to(dtype))
    table = cache(4, table_dtype or dtype)
    wanted = [steps(x, positions, table, 8, neox=neox) for x in (query, key)]
    for run in (ops.rotary_embedding, ops.rotary_embedding.torch_op):
        same_bits(run(positions, query, key, 8, 4, table, neox), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_arithmetic_in_float32_would_be_seen(dtype: torch.dtype) -> None:
    """These values tell the contract from products that are rounded only at the end."""
    positions = torch.arange(16)
    query = torch.randn(16, 2, 8).to(dtype)
    once = steps(query.float().flatten(1), positions, cache(8, dtype).float(), 8, neox=True).to(dtype)
    result, _ = ops.rotary_embedding(positions, query, query, 8, 8, cache(8, dtype), True)  # noqa: FBT003
    assert not torch.equal(result.flatten(1), once)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_model_library(dtype: torch.dtype, same_bits: Any) -> None:
    """The result has the bits of apply_rotary_pos_emb of Transformers, batch, heads and all."""
    batch, tokens, head_size = 2, 7, 16
    positions = torch.randint(0, MAX_POSITION, (batch, tokens))
    query, key = torch.randn(batch, tokens, 4, head_size).to(dtype), torch.randn(batch, tokens, 2, head_size).to(dtype)
    table = cache(head_size, dtype)
    cos, sin = (torch.cat((half, half), dim=-1)[positions] for half in table.chunk(2, dim=-1))
    wanted = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), cos, sin)
    got = ops.rotary_embedding(positions, query, key, head_size, head_size, table, True)  # noqa: FBT003
    same_bits(got, [x.transpose(1, 2).contiguous() for x in wanted])


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("positions_shape", [(6,), (2, 3), (1, 2, 3), (6, 1)], ids=str)
@pytest.mark.parametrize("form", ["flat", "heads", "batched flat", "batched heads"])
def test_shapes(neox: bool, positions_shape: tuple[int, ...], form: str, same_bits: Any, sound: Any) -> None:
    """Positions may have any shape, tokens any leading dimensions, and heads may be apart or one after the other."""
    flat_positions = torch.tensor([0, 5, 1, 49, 5, 2])
    query, key = torch.randn(6, 3 * 8), torch.randn(6, 8)
    wanted = [steps(x, flat_positions, cache(4), 8, neox=neox) for x in (query, key)]
    shapes = {"flat": (6,), "heads": (6,), "batched flat": (2, 3), "batched heads": (2, 3)}
    given_query, given_key = (
        x.reshape(*shapes[form], *((-1, 8) if form.endswith("heads") else (x.shape[-1],))) for x in (query, key)
    )
    positions = flat_positions.reshape(positions_shape)
    results = ops.rotary_embedding(positions, given_query, given_key, 8, 4, cache(4), neox)
    assert [result.shape for result in results] == [given_query.shape, given_key.shape]
    same_bits([result.reshape(6, -1) for result in results], wanted)
    sound(results, [positions, given_query, given_key])


def test_views_of_packed_rows(same_bits: Any, sound: Any) -> None:
    """Query and key that are views of packed rows are read where they lie, and the rows stay as they are."""
    packed = torch.randn(5, 16 + 8 + 8)
    kept = packed.clone()
    query, key, _ = packed.split((16, 8, 8), dim=-1)
    positions = torch.arange(5)
    results = ops.rotary_embedding(positions, query, key, 8, 8, cache(8), True)  # noqa: FBT003
    same_bits(results, [steps(x, positions, cache(8), 8, neox=True) for x in (query, key)])
    sound(results, [packed])
    assert torch.equal(packed, kept)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("shape", [(0, 16), (0, 2, 8), (2, 0, 16), (0, 3, 2, 8)], ids=str)
@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_no_tokens(neox: bool, shape: tuple[int, ...], rotary_dim: int, sound: Any) -> None:
    """Without tokens the results are empty, of the shapes of query and key."""
    query, key = torch.empty(shape), torch.empty(shape)
    positions = torch.empty(0, dtype=torch.int64)
    for run in (ops.rotary_embedding, ops.rotary_embedding.torch_op):
        results = run(positions, query, key, 8, rotary_dim, cache(rotary_dim), neox)
        assert [result.shape for result in results] == [shape, shape]
        sound(results, [query, key])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_positions_of_either_width(dtype: torch.dtype) -> None:
    """Positions may be int32 or int64."""
    query = torch.randn(3, 8)
    positions = torch.tensor([1, 2, 3])
    results = ops.rotary_embedding(positions.to(dtype), query, query, 8, 8, cache(8), True)  # noqa: FBT003
    assert torch.equal(results[0], steps(query, positions, cache(8), 8, neox=True))


def test_query_and_key_of_two_dtypes(same_bits: Any) -> None:
    """Query and key are each turned in their own dtype."""
    query, key, positions = torch.randn(3, 8).bfloat16(), torch.randn(3, 8), torch.tensor([1, 2, 3])
    results = ops.rotary_embedding(positions, query, key, 8, 8, cache(8), True)  # noqa: FBT003
    same_bits(results, [steps(x, positions, cache(8), 8, neox=True) for x in (query, key)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("neox", [True, False])
def test_batch_invariance(dtype: torch.dtype, neox: bool) -> None:
    """A row alone has the bits that it has among any number of others, as the op declares of native."""
    assert ops.rotary_embedding.impls["native"].batch_invariant
    for tokens in (2, 3, 5, 16, 33, 257):
        for heads, size in ((1, 8), (3, 16), (9, 64)):
            positions = torch.randint(0, MAX_POSITION, (tokens,))
            query = torch.randn(tokens, heads * size).to(dtype)
            table = cache(size, dtype)
            whole, _ = ops.rotary_embedding(positions, query, query, size, size, table, neox)
            for row in {0, tokens // 2, tokens - 1}:
                one = slice(row, row + 1)
                alone, _ = ops.rotary_embedding(positions[one], query[one], query[one], size, size, table, neox)
                assert torch.equal(alone[0], whole[row])


@given(
    tokens=st.integers(0, 4),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    half=st.integers(1, 5),
    rest=st.integers(0, 5),
    neox=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_any_sizes(tokens: int, heads: tuple[int, int], half: int, rest: int, neox: bool, dtype: torch.dtype) -> None:
    """Whatever the sizes, the result has the bits of single steps."""
    head_size, rotary_dim = 2 * half + rest, 2 * half
    positions = torch.randint(0, MAX_POSITION, (tokens,))
    inputs = [torch.randn(tokens, count * head_size).to(dtype) for count in heads]
    table = cache(rotary_dim, dtype)
    results = ops.rotary_embedding(positions, *inputs, head_size, rotary_dim, table, neox)
    for result, x in zip(results, inputs, strict=True):
        wanted = steps(x, positions, table, head_size, neox=neox) if tokens else x
        assert torch.equal(result, wanted)
