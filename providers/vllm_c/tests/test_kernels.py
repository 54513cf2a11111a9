"""The kernels against native, run on the CPU from the same sources with the same launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_vllm_c import calls
from vllm_ir_provider_vllm_c.predicates import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Native = Callable[..., Any]
    Matches = Callable[[str, Any, Any], None]
    Check = Callable[..., None]

EPSILON = 1e-6
# 16-byte accesses and single ones; a warp a row and a block a row; one, two and four packs a thread, and none kept.
SIZES = (1, 2, 7, 8, 33, 64, 576, 1000, 1032, 4096)
LONG = {torch.float32: 17_000, torch.bfloat16: 33_000, torch.float16: 33_000}
NEOX = True


def view(name: str, rows: int, size: int, dtype: torch.dtype) -> Tensor:
    """Return rows of adjacent elements that lie in one of several ways."""
    made = {
        "plain": lambda: torch.randn(rows, size).to(dtype),
        "packed": lambda: torch.randn(rows, 3 * size).to(dtype)[:, size : 2 * size],
        "transposed": lambda: torch.randn(3, rows, size).to(dtype).transpose(0, 1),
        "offset": lambda: torch.randn(rows * size + 3).to(dtype)[3:].view(rows, size),
        "expanded": lambda: torch.randn(1, size).to(dtype).expand(rows, size),
        "one": lambda: torch.randn(size).to(dtype),
        "four": lambda: torch.randn(2, 5, 3, 2 * size).to(dtype)[:, 1:4, ::2, :size],
        "empty": lambda: torch.randn(0, size).to(dtype),
    }
    return made[name]()


VIEWS = ("plain", "packed", "transposed", "offset", "expanded", "one", "four", "empty")


def run(op: str, *args: Any, donated: bool = False) -> Any:
    """Call an op as the implementations do."""
    direct: Any = calls
    if op == "rms_norm":
        return direct.rms_norm(*args)
    if op in ("fused_add_rms_norm", "rotary_embedding"):
        return getattr(direct, op)(*args, donated)
    x, *approximate = args
    return calls.gate(x, "SILU" if op == "silu_and_mul" else "GELU_TANH" if approximate == ["tanh"] else "GELU")


@pytest.fixture
def check(native: Native, matches: Matches, cpu: object) -> Check:
    """Give a comparison with native that also holds inputs unwritten, and donated ones rightly written."""
    del cpu

    def compare(op: str, *args: Any) -> None:
        """Compare one call, and the same call with its activations donated."""
        expected = native(op, *args)
        before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        matches(op, run(op, *args), expected)
        for i, (arg, kept) in enumerate(zip(args, before, strict=True)):
            if isinstance(arg, torch.Tensor):
                assert torch.equal(arg.nan_to_num(), kept.nan_to_num()), f"argument {i} was written"
        activations = {"fused_add_rms_norm": (0, 1), "rotary_embedding": (1, 2)}.get(op, ())
        if activations:
            given = [arg.clone().contiguous() if i in activations else arg for i, arg in enumerate(args)]
            got = run(op, *given, donated=True)
            matches(op, got, expected)
            assert all(one is given[i] for one, i in zip(got, activations, strict=True))

    return compare


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_norms_match_native(dtype: torch.dtype, size: int, check: Check) -> None:
    """Both norms, with every kind of weight and both kinds of variance, in place and not."""
    x, residual = torch.randn(5, size).to(dtype), torch.randn(5, size).to(dtype)
    for weight in (None, torch.randn(size).to(dtype), torch.randn(size)):
        for variance_size in (None, max(1, size // 2)):
            check("rms_norm", x, weight, EPSILON, variance_size)
            check("fused_add_rms_norm", x, residual, weight, EPSILON, variance_size)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extra", [0, 1])
def test_rows_too_long_to_keep_are_read_twice(dtype: torch.dtype, extra: int, check: Check, cpu: Any) -> None:
    """Rows beyond what the registers of a block hold, by 16 bytes and one by one."""
    x, weight = torch.randn(2, LONG[dtype] + extra).to(dtype), torch.randn(LONG[dtype] + extra).to(dtype)
    check("rms_norm", x, weight, EPSILON, None)
    check("fused_add_rms_norm", x, x.flip(0), weight, EPSILON, None)
    assert {each.expression.rsplit(", ", 1)[1] for each in cpu.launches} == {"0>"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_gates_match_native(dtype: torch.dtype, size: int, check: Check) -> None:
    """All three activations; gelu where 1 + erf does not cancel, for there a CPU has an erf of its own."""
    x = 2 * torch.randn(5, 2 * size).to(dtype)
    check("silu_and_mul", x)
    x[:, :size] = x[:, :size].clamp(min=-0.5)
    check("gelu_and_mul", x, "none")
    check("gelu_and_mul", x, "tanh")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("cpu")
def test_gelu_is_as_exact_as_its_cancelling_sum_lets_it_be(dtype: torch.dtype, approximate: str) -> None:
    """Everywhere within two units of float32's 1, times the input, and one unit of the result, of the exact value."""
    gates = torch.linspace(-8, 8, 4096).to(dtype)
    got = run("gelu_and_mul", torch.cat((gates, torch.ones_like(gates))), approximate).double()
    exact = torch.nn.functional.gelu(gates.double(), approximate=approximate)
    allowed = gates.double().abs() * 2**-22 + exact.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).tiny
    assert not ((got - exact).abs() > allowed).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_silu_matches_native_for_every_number(native: Native, dtype: torch.dtype, matches: Matches, cpu: Any) -> None:
    """Each of the 65536 bit patterns goes through the activation as in native."""
    del cpu
    gates = torch.arange(65536).to(torch.int32).to(torch.int16).view(dtype).view(64, 1024)
    x = torch.cat((gates, torch.ones_like(gates)), dim=-1)
    matches("silu_and_mul", run("silu_and_mul", x), native("silu_and_mul", x))


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(64, 64), (64, 32), (80, 20), (16, 6), (2, 2)])
def test_rotary_matches_native(neox: bool, dtype: torch.dtype, head_size: int, rotary_dim: int, check: Check) -> None:
    """Whole and partial rotation, both styles, caches of both dtypes, heads packed or apart, int32 and int64."""
    heads = torch.randn(6, 5, head_size).to(dtype)
    shapes = (
        (heads[:, :3].flatten(1), heads[:, 3:].flatten(1)),
        (heads[:, :3], heads[:, 3:]),
        (heads.flatten(1)[:, : 3 * head_size], heads.flatten(1)[:, 3 * head_size :]),
    )
    for cache_dtype in {dtype, torch.float32}:
        cache = torch.randn(50, rotary_dim).to(cache_dtype)
        for query, key in shapes:
            for kind in (torch.int64, torch.int32):
                positions = torch.randint(0, 50, (6,)).to(kind)
                check("rotary_embedding", positions, query, key, head_size, rotary_dim, cache, neox)


def test_rotary_takes_tokens_in_several_dimensions(check: Check) -> None:
    """Positions [batch, tokens], transposed ones too, and query [batch, tokens, heads, head_size]."""
    query, key, cache = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 16), torch.randn(9, 16)
    for positions in (torch.randint(0, 9, (2, 3)), torch.randint(0, 9, (3, 2)).T):
        check("rotary_embedding", positions, query, key, 16, 16, cache, NEOX)


def test_one_position_turns_all_rows(check: Check) -> None:
    """A single position belongs to every row of two dimensions, as in native."""
    check(
        "rotary_embedding", torch.tensor([3]), torch.randn(4, 16), torch.randn(4, 16), 16, 16, torch.randn(9, 16), NEOX
    )


@pytest.mark.parametrize("position", [-1, 50])
@pytest.mark.usefixtures("cpu")
def test_a_position_outside_the_cache_stops_the_grid(position: int) -> None:
    """As native's device-side check does; nothing is read from beyond the cache."""
    query, cache = torch.randn(3, 32), torch.randn(50, 16)
    with pytest.raises(RuntimeError, match="block 2: __trap"):
        run("rotary_embedding", torch.tensor([0, 1, position]), query, query.clone(), 16, 16, cache, NEOX)


def test_tokens_that_do_not_agree_are_an_error() -> None:
    """Query and key of other tokens than there are positions are never read past their end."""
    with pytest.raises(ValueError, match=r"\[4\] tokens, and there are 3 positions"):
        run(
            "rotary_embedding",
            torch.zeros(3).long(),
            torch.ones(4, 32),
            torch.ones(4, 32),
            16,
            16,
            torch.ones(9, 16),
            NEOX,
        )
    with pytest.raises(ValueError, match="x_residual is of shape"):
        run("fused_add_rms_norm", torch.ones(4, 8), torch.ones(1, 8), None, EPSILON, None)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_anywhere(name: str, dtype: torch.dtype, check: Check) -> None:
    """Packed, transposed, offset, expanded, one to four dimensions, no rows: no copy, and contiguous results."""
    weight = torch.randn(64).to(dtype)
    x, residual = view(name, 6, 64, dtype), view(name, 6, 64, dtype)
    check("rms_norm", x, weight, EPSILON, None)
    check("fused_add_rms_norm", x, residual, weight, EPSILON, None)
    check("silu_and_mul", x)


def test_no_tokens_start_nothing(cpu: Any) -> None:
    """Zero tokens are answered without a launch."""
    for dtype in DTYPES:
        for op, args in (("rms_norm", (None, EPSILON, None)), ("silu_and_mul", ()), ("gelu_and_mul", ("none",))):
            assert run(op, torch.randn(0, 64).to(dtype), *args).shape[0] == 0
    none = torch.randn(0, 64)
    run("rotary_embedding", torch.zeros(0).long(), none, none.clone(), 16, 16, torch.randn(9, 16), NEOX)
    assert cpu.launches == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_as_native(dtype: torch.dtype, check: Check) -> None:
    """NaN, infinities, subnormals, signed zeros, ties and extremes."""
    x, finfo = torch.randn(8, 100), torch.finfo(dtype)
    x[0, 0], x[1, 50], x[2, -1], x[3], x[4] = float("nan"), float("inf"), -float("inf"), -0.0, 0.0
    x[5], x[6] = finfo.smallest_normal / 4, finfo.max
    x[7] = 1.0 + torch.arange(100) % 64 / 256  # halfway between two neighbours, once the row is normalised
    x = x.to(dtype)
    for weight in (None, torch.randn(100).to(dtype), torch.randn(100)):
        check("rms_norm", x, weight, EPSILON, None)
        check("fused_add_rms_norm", x, -x, weight, EPSILON, None)
        check("fused_add_rms_norm", x, x.flip(0), weight, EPSILON, None)
    check("silu_and_mul", x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 64, 1000, 4096])
@pytest.mark.usefixtures("cpu")
def test_a_row_has_the_same_bits_in_every_batch_and_at_every_address(dtype: torch.dtype, size: int) -> None:
    """Alone or among others, aligned or not: block, kind of kernel and order of the sum go by the size of a row."""
    x = torch.randn(9, size).to(dtype)
    odd = torch.cat((torch.zeros(1, dtype=dtype), x.flatten()))[1:].view(9, size)
    whole = run("rms_norm", x, None, EPSILON, None)
    assert torch.equal(run("rms_norm", odd, None, EPSILON, None), whole)
    assert torch.equal(run("rms_norm", x[4:5], None, EPSILON, None), whole[4:5])
    added, total = run("fused_add_rms_norm", x, x.flip(0), None, EPSILON, None)
    for one, other in zip(
        run("fused_add_rms_norm", odd[2:4], odd.flip(0)[2:4], None, EPSILON, None), (added, total), strict=True
    ):
        assert torch.equal(one, other[2:4])


@pytest.mark.parametrize("order", range(5))
def test_every_schedule_gives_the_same_bits(order: int, cpu: Any) -> None:
    """Threads up, down, shuffled, and warps one after the other in both directions."""
    results = []
    for cpu.order in (0, order):
        torch.manual_seed(1)
        for size in (64, 1000, 4096):
            x = torch.randn(3, size).bfloat16()
            results.append([run("rms_norm", x, x[0].clone(), EPSILON, None)])
            results[-1] += run("fused_add_rms_norm", x.clone(), x.flip(0), None, EPSILON, None, donated=True)
            results[-1].append(run("silu_and_mul", x))
            query, positions = torch.randn(4, 64), torch.arange(4)
            results[-1] += run("rotary_embedding", positions, query, query.clone(), 32, 32, torch.randn(4, 32), NEOX)
    half = len(results) // 2
    for ones, others in zip(results[:half], results[half:], strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))
