"""How AITER is called: with matrices, in parts, not at all for no rows.

The stand-in raises for what AITER would trust without looking.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_aiter import calls
from vllm_ir_provider_aiter.errors import WrongTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from providers.aiter_stub.tests.conftest import Site

HEAD = 16
NEOX = True


@pytest.fixture(autouse=True)
def made(site: Site) -> list[tuple[str, tuple[Any, ...]]]:
    """Install the stand-in and give the list of calls that were made of it."""
    assert site.package.is_dir()
    torch.manual_seed(7)
    found: list[tuple[str, tuple[Any, ...]]] = importlib.import_module("aiter").CALLS
    return found


def rows(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return normally distributed values."""
    return torch.randn(*sizes, dtype=dtype)


def native(op: str, *args: Any) -> Any:
    """Return what an op means."""
    from vllm_ir import ops

    return getattr(ops, op).impls["native"].impl_fn(*args)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "one row": lambda: rows(64),
    "matrix": lambda: rows(5, 64),
    "four dimensions": lambda: rows(2, 1, 3, 64),
    "middle of a packed row": lambda: rows(5, 192)[:, 64:128],
    "packed, three dimensions": lambda: rows(2, 3, 192)[..., 64:128],
    "one row for all": lambda: rows(1, 64).expand(5, 64),
    "odd size": lambda: rows(3, 7),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_norm_gets_a_matrix_and_gives_a_contiguous_tensor(
    layout: str, made: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """Rows are not copied on the way: AITER is given the same memory."""
    x = LAYOUTS[layout]()
    weight = rows(x.shape[-1])
    result = calls.rms_norm(x, weight, 1e-6)
    assert result.is_contiguous()
    assert torch.equal(result, native("rms_norm", x, weight, 1e-6))
    ((name, (given, *_)),) = made
    assert (name, given.data_ptr(), given.dim()) == ("rmsnorm2d_fwd", x.data_ptr(), 2)


def test_norms_are_asked_to_round_as_native_does(made: list[tuple[str, tuple[Any, ...]]]) -> None:
    """AITER's own default leaves the normalised value unrounded, and cuts bfloat16 off."""
    calls.rms_norm(rows(2, 64), rows(64), 1e-6)
    calls.fused_add_rms_norm(rows(2, 64), rows(2, 64), rows(64), 1e-6)
    assert [arguments[-1] for _, arguments in made] == [1, 1]


def test_a_fused_norm_writes_two_new_tensors() -> None:
    """AITER may read its inputs again after it has written, so nothing is written in place."""
    x, residual, weight = rows(2, 3, 64), rows(2, 3, 192)[..., :64], rows(64)
    before = x.clone(), residual.clone()
    out, total = calls.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])
    assert torch.equal(total, native("fused_add_rms_norm", x, residual, weight, 1e-6)[1])
    assert torch.equal(out, native("rms_norm", total, weight, 1e-6))
    assert out.is_contiguous()
    assert total.is_contiguous()


def test_a_residual_of_another_shape_is_an_error() -> None:
    """AITER would read beyond it."""
    with pytest.raises(WrongTokens, match="fused_add_rms_norm: x_residual is of 1 tokens, wanted 4, as x"):
        calls.fused_add_rms_norm(rows(4, 64), rows(1, 64), rows(64), 1e-6)


def test_more_than_aiter_can_count_goes_in_parts(
    monkeypatch: pytest.MonkeyPatch, made: list[tuple[str, tuple[Any, ...]]]
) -> None:
    """Its norms count bytes in 32 bits: beyond that it is called again, and the results are one tensor."""
    monkeypatch.setattr(calls, "MOST_BYTES", 3 * 192 * 2)
    x, weight = rows(8, 192)[:, :64], rows(64)
    assert torch.equal(calls.rms_norm(x, weight, 1e-6), native("rms_norm", x, weight, 1e-6))
    assert [arguments[0].shape[0] for _, arguments in made] == [3, 3, 2]
    made.clear()
    residual = rows(8, 64)
    out, total = calls.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, native("fused_add_rms_norm", x, residual, weight, 1e-6)[1])
    assert torch.equal(out, native("rms_norm", total, weight, 1e-6))
    assert len(made) == 3


def test_the_limit_is_what_32_bits_count() -> None:
    """Two gibibytes: beyond it an offset would be negative."""
    assert calls.MOST_BYTES == 2**31


@pytest.mark.parametrize("sizes", [(0, 64), (0, 3, 64), (2, 0, 64)])
def test_no_tokens_call_nothing(sizes: tuple[int, ...], made: list[tuple[str, tuple[Any, ...]]]) -> None:
    """A grid without blocks is an error of the driver."""
    x, weight = rows(*sizes), rows(64)
    results = [calls.rms_norm(x, weight, 1e-6), *calls.fused_add_rms_norm(x, x, weight, 1e-6)]
    assert {each.shape for each in results} == {x.shape}
    assert calls.silu_and_mul(x).shape == (*sizes[:-1], 32)
    positions, cache = torch.zeros(0, dtype=torch.int64), rows(8, HEAD)
    query, key = calls.rotary_embedding(positions, x, x, HEAD, HEAD, cache, NEOX, calls.KEPT)
    assert (query.shape, key.shape) == (x.shape, x.shape)
    assert made == []


def test_a_gate_gets_its_rows_and_a_new_result(made: list[tuple[str, tuple[Any, ...]]]) -> None:
    """The result has half the last size and every dimension before it."""
    x = rows(2, 3, 2 * 328)
    assert calls.silu_and_mul(x).shape == (2, 3, 328)
    ((name, (out, given)),) = made
    assert (name, out.shape, given is x) == ("silu_and_mul", (2, 3, 328), True)


def turned(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, donated: bool = False, **changed: Any
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return what AITER makes of a rotation, and what it means."""
    cache = changed.pop("cache", rows(32, HEAD))
    arguments = (positions, query, key, HEAD, cache.shape[-1], cache, changed.pop("neox", True))
    wanted = native("rotary_embedding", *arguments)
    return calls.rotary_embedding(*arguments, donated), wanted


POSITIONS = torch.tensor([3, 0, 31, 7, 7])


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [HEAD, 8, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_rotation_has_natives_bits(neox: bool, rotary_dim: int, dtype: torch.dtype) -> None:
    """Both styles, whole heads and parts, both dtypes, a cache of another dtype."""
    query, key = rows(5, 4 * HEAD, dtype=dtype), rows(5, HEAD, dtype=dtype)
    results, wanted = turned(query, key, POSITIONS, neox=neox, cache=rows(32, rotary_dim, dtype=torch.float32))
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))


SHAPES = {
    "heads of their own": ((5, 4, HEAD), (5, 1, HEAD), POSITIONS),
    "batch and sequence": ((1, 5, 4 * HEAD), (1, 5, HEAD), POSITIONS.view(1, 5)),
    "one head a row": ((5, HEAD), (5, 4 * HEAD), POSITIONS),
    "one position for all": ((4, 2 * HEAD), (HEAD,), POSITIONS[:1]),
    "int32": ((5, 2 * HEAD), (5, HEAD), POSITIONS.int()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rotation_of_any_shape(shape: str) -> None:
    """Tokens are counted by positions, as native counts them."""
    query, key, positions = SHAPES[shape]
    results, wanted = turned(rows(*query), rows(*key), positions)
    assert [each.shape for each in results] == [query, key]
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))


def test_only_the_rows_of_the_tokens_are_taken_out_of_the_cache(made: list[tuple[str, tuple[Any, ...]]]) -> None:
    """A copy of a cache of all positions at every call would cost more than the rotation."""
    turned(rows(5, HEAD), rows(5, HEAD), POSITIONS)
    ((_, (positions, _, _, cos, sin, *_)),) = made
    assert positions.tolist() == [0, 1, 2, 3, 4]
    assert (cos.shape, sin.shape) == ((5, HEAD // 2), (5, HEAD // 2))


def test_donated_heads_are_turned_where_they_lie() -> None:
    """The results are the tensors that were given."""
    query, key = rows(5, 4 * HEAD), rows(5, HEAD)
    (one, other), wanted = turned(query, key, POSITIONS, donated=True)
    assert one is query
    assert other is key
    assert torch.equal(one, wanted[0])
    assert torch.equal(other, wanted[1])


@pytest.mark.parametrize("donated", [True, False])
def test_heads_of_a_packed_row_are_left_alone(donated: bool) -> None:
    """Results are contiguous by contract, so what lies otherwise is not written, donated or not."""
    packed = rows(5, 6 * HEAD)
    before = packed.clone()
    results, wanted = turned(packed[:, : 4 * HEAD], packed[:, 4 * HEAD : 5 * HEAD], POSITIONS, donated=donated)
    assert torch.equal(packed, before)
    assert all(each.is_contiguous() for each in results)
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))


def test_one_tensor_donated_twice_is_not_turned_twice() -> None:
    """Query and key that share memory are copied first."""
    x = rows(5, HEAD)
    before = x.clone()
    results, wanted = turned(x, x, POSITIONS, donated=True)
    assert torch.equal(x, before)
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))


@pytest.mark.parametrize(("query", "key", "named"), [((4, HEAD), (5, HEAD), "query"), ((5, HEAD), (10, HEAD), "key")])
def test_tokens_that_do_not_fit_are_an_error(query: tuple[int, ...], key: tuple[int, ...], named: str) -> None:
    """AITER would take rows for heads, or read beyond them."""
    with pytest.raises(WrongTokens, match=f"rotary_embedding: {named} is of") as caught:
        calls.rotary_embedding(POSITIONS, rows(*query), rows(*key), HEAD, HEAD, rows(32, HEAD), NEOX, calls.KEPT)
    assert isinstance(caught.value, ValueError)


def test_a_position_outside_the_cache_is_an_error() -> None:
    """It is noticed where the rows are taken out, before AITER sees anything."""
    with pytest.raises(IndexError):
        calls.rotary_embedding(POSITIONS, rows(5, HEAD), rows(5, HEAD), HEAD, HEAD, rows(8, HEAD), NEOX, calls.KEPT)
