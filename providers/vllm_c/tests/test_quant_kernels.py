"""What is quantised, against native, on the CPU from the same sources: bit for bit where nothing is summed."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_provider_vllm_c import kernels, norm_quant_kernels, quant_kernels
from vllm_ir_provider_vllm_c.predicates import DTYPES
from vllm_ir_provider_vllm_c.quant_predicates import DTYPES as FP8
from vllm_ir_provider_vllm_c.quantization import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Native = Callable[..., Any]
    Exact = Callable[..., None]
    Nearly = Callable[..., None]

EPSILON = 1e-6
# 16-byte accesses and single ones; a warp a row and a block a row; one, two and four packs a thread, and none kept.
SIZES = (1, 2, 7, 8, 33, 64, 576, 1000, 1032, 4096)
LONG = {torch.float32: 17_000, torch.bfloat16: 33_000, torch.float16: 33_000}
# How far a scale is from native's where the largest value of a row is one unit off.
APART = {torch.float32: 5e-6, torch.bfloat16: 2**-7, torch.float16: 2**-9}
NAN = float("nan")
INF = float("inf")
PER_TOKEN, PER_TENSOR = True, False
COLUMN_MAJOR, UE8M0 = True, True
NEOX = True


def implementation(op: str) -> Callable[..., Any]:
    """Return what runs an op, in place where it may."""
    for module in (kernels, quant_kernels, norm_quant_kernels):
        found = getattr(module, op, None)
        if found is not None:
            return found.impl_fn  # type: ignore[no-any-return]
    raise AssertionError(op)


def functional(op: str) -> Callable[..., Any]:
    """Return what runs an op and writes no input."""
    for module in (kernels, norm_quant_kernels):
        found = getattr(module, f"functional_{op}", None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return implementation(op)


def results(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def pairs(got: Any, expected: Any) -> list[tuple[Tensor, Tensor]]:
    """Return results beside native's, which lie in memory in the same way."""
    found = list(zip(results(got), results(expected), strict=True))
    assert [one.stride() for one, _ in found] == [other.stride() for _, other in found]
    return found


def ordered(x: Tensor) -> Tensor:
    """Return numbers as integers, neighbours one apart; both zeros are 0."""
    bits = x.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.dtype.itemsize]).long()
    most = 2 ** (8 * x.dtype.itemsize - 1)
    return torch.where(bits < 0, -(bits + most), bits)


def different(one: Tensor, other: Tensor) -> Tensor:
    """Tell which numbers have other bits; any two NaN are alike."""
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[one.dtype.itemsize]
    return (one.view(bits) != other.view(bits)) & ~(one.float().isnan() & other.float().isnan())


def same(got: Any, expected: Any) -> None:
    """Require results of the same bits."""
    assert not any(different(one, other).any() for one, other in pairs(got, expected))


@pytest.fixture
def exact(native: Native, cpu: object) -> Exact:
    """Give a comparison with native, bit for bit, that also holds inputs unwritten."""
    del cpu

    def compare(op: str, *args: Any) -> None:
        """Compare one call."""
        before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        for one, other in pairs(functional(op)(*args), native(op, *args)):
            wrong = different(one, other)
            assert not wrong.any(), f"{one[wrong][:3]} is not {other[wrong][:3]}"
        for arg, kept in zip(args, before, strict=True):
            if isinstance(arg, torch.Tensor):
                assert not different(arg, kept).any()

    return compare


def check_nearly(op: str, got: Any, expected: Any, dtype: torch.dtype) -> None:
    """Require native's values as far as a sum in another order, or another exp, lets them be.

    The unquantised value may be one unit off in 1 of 10,000, and so may the quantised one. Where that value is the
    largest of its row the scale of the row moves by as much, and all of its values by one unit at most. A sum of x and
    residual is exact.
    """
    (one, other), *others = pairs(got, expected)
    if op.startswith("fused_add"):
        assert not different(*others.pop()).any()
    apart = (ordered(one) - ordered(other)).abs()
    wrong = different(one, other)
    assert not (apart[wrong] > 1).any()
    for mine, theirs in others:
        torch.testing.assert_close(mine, theirs, rtol=APART[dtype], atol=0.0, equal_nan=True)
        moved = (mine - theirs).abs() > 1e-6 * theirs
        assert int(moved.sum()) <= max(1, 0.01 * moved.numel())
        if mine.numel() != 1:
            moved = moved.repeat_interleave(one.shape[-1] // mine.shape[-1], dim=-1)
        wrong &= ~moved
    assert int(wrong.sum()) <= max(2, 1e-4 * one.numel()), f"{int(wrong.sum())} of {one.numel()} differ"


@pytest.fixture
def nearly(native: Native, cpu: object) -> Nearly:
    """Give a comparison with native that lets a sum be in another order, and inputs be donated but not lost."""
    del cpu

    def compare(op: str, *args: Any) -> None:
        """Compare one call, and the same call with its activations donated."""
        expected = native(op, *args)
        before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        check_nearly(op, functional(op)(*args), expected, args[0].dtype)
        for arg, kept in zip(args, before, strict=True):
            if isinstance(arg, torch.Tensor):
                assert not different(arg, kept).any()
        if op.startswith("fused_add"):
            x, residual, *rest = before
            residual = residual.contiguous()
            got = implementation(op)(x, residual, *rest)
            check_nearly(op, got, expected, x.dtype)
            assert got[-1] is residual

    return compare


@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_quantised_rows_are_native_s(dtype: torch.dtype, size: int, fp8: torch.dtype, exact: Exact) -> None:
    """With a scale of every kind: one, one a channel, one a row, one for all, bounded or not, and one a group."""
    x = torch.randn(5, size).to(dtype)
    for scale in (torch.tensor(0.01), torch.tensor([0.3]), torch.rand(size) + 0.001):
        exact("static_quant_fp8", x, scale, fp8)
    for per_token in (PER_TOKEN, PER_TENSOR):
        for bound in (None, torch.tensor(0.7), torch.tensor([1.5])):
            exact("dynamic_quant_fp8", x, per_token, bound, fp8)
    for groups in {size, size // 2, size // 8, 1}:
        if groups and size % groups == 0:
            exact("dynamic_group_quant_fp8", x, groups, not COLUMN_MAJOR, not UE8M0, fp8)
            exact("dynamic_group_quant_fp8", x, groups, COLUMN_MAJOR, UE8M0, fp8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_quantised_gates_match_native(dtype: torch.dtype, size: int, nearly: Nearly) -> None:
    """The product is rounded as alone, and then quantised; two exp may differ in the last place of a float32."""
    x = torch.randn(5, 2 * size).to(dtype)
    nearly("silu_and_mul_static_quant_fp8", x, torch.tensor([0.02]), FP8[0])
    nearly("silu_and_mul_dynamic_quant_fp8", x, PER_TOKEN, None, FP8[0])
    nearly("silu_and_mul_dynamic_quant_fp8", x, PER_TENSOR, torch.tensor([0.9]), FP8[1])
    nearly("silu_and_mul_group_quant_fp8", x, size, not COLUMN_MAJOR, not UE8M0, FP8[1])
    nearly("silu_and_mul_group_quant_fp8", x, size // 4 if size % 4 == 0 else 1, COLUMN_MAJOR, UE8M0, FP8[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_quantised_norms_match_native(dtype: torch.dtype, size: int, nearly: Nearly) -> None:
    """Both norms, with every kind of weight and every kind of scale, in place and not."""
    x, residual = torch.randn(5, size).to(dtype), torch.randn(5, size).to(dtype)
    for weight in (None, torch.randn(size).to(dtype), torch.randn(size)):
        for op, inputs in (("rms_norm", (x,)), ("fused_add_rms_norm", (x, residual))):
            nearly(f"{op}_static_quant_fp8", *inputs, weight, torch.tensor([0.01]), EPSILON, FP8[0])
            nearly(f"{op}_dynamic_quant_fp8", *inputs, weight, EPSILON, PER_TOKEN, None, FP8[0])
            nearly(f"{op}_dynamic_quant_fp8", *inputs, weight, EPSILON, PER_TOKEN, torch.tensor(1.5), FP8[1])
            nearly(f"{op}_dynamic_quant_fp8", *inputs, weight, EPSILON, PER_TENSOR, None, FP8[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("extra", [0, 1])
def test_long_rows_are_read_again(dtype: torch.dtype, extra: int, exact: Exact, nearly: Nearly, cpu: Any) -> None:
    """Rows beyond what the registers of a block hold, and groups beyond a pack for each thread of a warp."""
    size = LONG[dtype] + extra
    x, weight, scale = torch.randn(2, size).to(dtype), torch.randn(size).to(dtype), torch.tensor([0.01])
    exact("dynamic_quant_fp8", x, PER_TOKEN, None, FP8[0])
    exact("dynamic_group_quant_fp8", x, size, not COLUMN_MAJOR, not UE8M0, FP8[0])
    nearly("rms_norm_static_quant_fp8", x, weight, scale, EPSILON, FP8[0])
    nearly("fused_add_rms_norm_dynamic_quant_fp8", x, x.flip(0), weight, EPSILON, PER_TOKEN, None, FP8[0])
    nearly("fused_add_rms_norm_static_quant_fp8", x, x.flip(0), weight, scale, EPSILON, FP8[0])
    assert {each.expression.rsplit(", ", 1)[1] for each in cpu.launches} == {"0>"}


@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number_of_16_bits_is_quantised_as_by_native(dtype: torch.dtype, fp8: torch.dtype, exact: Exact) -> None:
    """Each of the 65536 bit patterns, over scales that put it anywhere: ties, subnormals, NaN, what saturates."""
    x = torch.arange(65536).to(torch.int32).to(torch.int16).view(dtype).view(64, 1024)
    for scale in (1.0, 0.3, 2.0**-9, 1000.0):
        exact("static_quant_fp8", x, torch.tensor([scale]), fp8)
    exact("dynamic_group_quant_fp8", x, 1, not COLUMN_MAJOR, not UE8M0, fp8)
    exact("dynamic_group_quant_fp8", x, 16, COLUMN_MAJOR, UE8M0, fp8)
    exact("dynamic_quant_fp8", x, PER_TOKEN, torch.tensor([100.0]), fp8)


def around(dtype: torch.dtype) -> Tensor:
    """Return float32 at, just below and just above every 8-bit number and every middle of two, with both signs."""
    numbers = torch.arange(128, dtype=torch.uint8).view(dtype).float()
    numbers = numbers[numbers.isfinite()]
    middles = (numbers[1:].double() + numbers[:-1].double()).div(2).float()
    points = torch.cat((numbers, middles, numbers[-1:] * 1.0625))
    near = torch.stack((points, points.nextafter(torch.tensor(INF)), points.nextafter(torch.tensor(-INF))))
    return torch.cat((near, -near)).flatten()


@pytest.mark.parametrize("fp8", FP8)
def test_float32_rounds_to_the_nearest_even_number(fp8: torch.dtype, exact: Exact) -> None:
    """On both sides of every middle, and in it; over a scale that is no power of two, too."""
    x = around(fp8).expand(2, -1).contiguous()
    for scale in (1.0, 0.1, 3.0):
        exact("static_quant_fp8", x, torch.tensor([scale]), fp8)
    exact("dynamic_group_quant_fp8", x, 2, not COLUMN_MAJOR, UE8M0, fp8)
    exact("dynamic_group_quant_fp8", x, x.shape[-1], not COLUMN_MAJOR, not UE8M0, fp8)


@pytest.mark.parametrize("fp8", FP8)
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_quantised_as_by_native(
    dtype: torch.dtype, fp8: torch.dtype, exact: Exact, nearly: Nearly
) -> None:
    """NaN, infinities, subnormals, signed zeros and extremes, in values, scales and bounds."""
    x, finfo = torch.randn(8, 96), torch.finfo(dtype)
    x[0, 0], x[1, 50], x[2, -1], x[3], x[4] = NAN, INF, -INF, -0.0, 0.0
    x[5], x[6, :3], x[7] = finfo.smallest_normal / 4, finfo.max, 1e-9
    x = x.to(dtype)
    for scale in (1.0, 0.0, -0.0, -0.5, INF, NAN, 1e-39, 3e38):
        exact("static_quant_fp8", x, torch.tensor([scale]), fp8)
        exact("dynamic_quant_fp8", x, PER_TOKEN, torch.tensor(scale), fp8)
        exact("dynamic_quant_fp8", x[3:], PER_TENSOR, torch.tensor(scale), fp8)
    for rows in (x, x[3:], x[3:6], x[:1]):
        exact("dynamic_quant_fp8", rows, PER_TENSOR, None, fp8)
        exact("dynamic_group_quant_fp8", rows, 8, not COLUMN_MAJOR, UE8M0, fp8)
        exact("dynamic_group_quant_fp8", rows, 3, not COLUMN_MAJOR, not UE8M0, fp8)
    for weight in (None, torch.randn(96)):
        nearly("rms_norm_dynamic_quant_fp8", x[:6], weight, EPSILON, PER_TOKEN, None, fp8)
        nearly("fused_add_rms_norm_static_quant_fp8", x, -x, weight, torch.tensor([0.01]), EPSILON, fp8)
        nearly("fused_add_rms_norm_static_quant_fp8", x, x, weight, torch.tensor([NAN]), EPSILON, fp8)


VIEWS = ("plain", "packed", "transposed", "offset", "expanded", "one", "four", "empty")


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


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_to_quantise_may_lie_anywhere(name: str, dtype: torch.dtype, exact: Exact, nearly: Nearly) -> None:
    """Packed, transposed, offset, expanded, one to four dimensions, no rows; strides are native's, of scales too."""
    x, residual, scale, fp8 = view(name, 6, 64, dtype), view(name, 6, 64, dtype), torch.tensor([0.02]), FP8[0]
    exact("static_quant_fp8", x, scale, fp8)
    exact("static_quant_fp8", x, torch.rand(65)[1:] + 0.01, fp8)
    for per_token in (PER_TOKEN, PER_TENSOR):
        exact("dynamic_quant_fp8", x, per_token, None, fp8)
        nearly("fused_add_rms_norm_dynamic_quant_fp8", x, residual, None, EPSILON, per_token, None, fp8)
    for column_major in (COLUMN_MAJOR, not COLUMN_MAJOR):
        exact("dynamic_group_quant_fp8", x, 16, column_major, not UE8M0, fp8)
        nearly("silu_and_mul_group_quant_fp8", x, 16, column_major, UE8M0, fp8)
    nearly("silu_and_mul_static_quant_fp8", x, scale, fp8)
    nearly("rms_norm_static_quant_fp8", x, residual.flatten()[:64] if x.numel() else None, scale, EPSILON, fp8)


def test_no_tokens_quantise_nothing(cpu: Any) -> None:
    """But the scale of a tensor, which is the least one."""
    x, scale = torch.randn(0, 64), torch.tensor([0.1])
    implementation("static_quant_fp8")(x, scale)
    implementation("dynamic_quant_fp8")(x)
    implementation("silu_and_mul_group_quant_fp8")(x, 32)
    implementation("fused_add_rms_norm_dynamic_quant_fp8")(x, x.clone(), None, EPSILON)
    assert cpu.launches == []
    _, least = implementation("rms_norm_dynamic_quant_fp8")(x, None, EPSILON, PER_TENSOR)
    assert [each.expression for each in cpu.launches] == ["tensor_scale"]
    assert least.item() == torch.tensor(1 / (448 * 512)).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 64, 1000, 4096])
@pytest.mark.usefixtures("cpu")
def test_a_quantised_row_has_the_same_bits_in_every_batch(dtype: torch.dtype, size: int) -> None:
    """Alone or among others, aligned or not: also where an aligned row is kept and another one read again."""
    x = torch.randn(9, size).to(dtype)
    odd = torch.cat((torch.zeros(1, dtype=dtype), x.flatten()))[1:].view(9, size)
    cases: dict[str, tuple[Any, ...]] = {
        "rms_norm_dynamic_quant_fp8": (None, EPSILON),
        "rms_norm_static_quant_fp8": (None, torch.tensor([0.01]), EPSILON),
        "dynamic_quant_fp8": (),
        "dynamic_group_quant_fp8": (size,),
        "fused_add_rms_norm_dynamic_quant_fp8": (None, EPSILON),
    }
    for op, rest in cases.items():
        both = op.startswith("fused_add")
        whole = results(functional(op)(x, *((x.flip(1),) if both else ()), *rest))
        for rows in (odd, odd[2:4], x[4:5]):
            start = {9: 0, 2: 2, 1: 4}[len(rows)]
            part = results(functional(op)(rows, *((rows.flip(1),) if both else ()), *rest))
            for one, other in zip(part, whole, strict=True):
                assert not different(one, other[start : start + len(rows)]).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [7, 64, 1000, 4096])
@pytest.mark.usefixtures("cpu")
def test_a_fused_kernel_gives_what_its_parts_give(dtype: torch.dtype, size: int) -> None:
    """Bit for bit, by kernels of our own one after the other: order of the sum, exp and roundings are the same."""
    x, residual, weight = (torch.randn(shape).to(dtype) for shape in ((5, size), (5, size), (size,)))
    gates, scale, fp8 = torch.randn(5, 2 * size).to(dtype), torch.tensor([0.02]), FP8[0]
    normed = functional("rms_norm")(x, weight, EPSILON)
    added, total = functional("fused_add_rms_norm")(x, residual, weight, EPSILON)
    gated = functional("silu_and_mul")(gates)
    static, dynamic = (functional(f"{kind}_quant_fp8") for kind in ("static", "dynamic"))
    norm, fused = ("rms_norm", (x,), normed, ()), ("fused_add_rms_norm", (x, residual), added, (total,))
    for op, inputs, unquantized, sums in (norm, fused):
        got = functional(f"{op}_static_quant_fp8")(*inputs, weight, scale, EPSILON, fp8)
        same(got, (static(unquantized, scale, fp8), *sums))
        for per_token in (PER_TOKEN, PER_TENSOR):
            got = functional(f"{op}_dynamic_quant_fp8")(*inputs, weight, EPSILON, per_token, None, fp8)
            same(got, (*dynamic(unquantized, per_token, None, fp8), *sums))
    same(functional("silu_and_mul_static_quant_fp8")(gates, scale, fp8), static(gated, scale, fp8))
    same(functional("silu_and_mul_dynamic_quant_fp8")(gates), dynamic(gated))
    same(functional("silu_and_mul_group_quant_fp8")(gates, size), functional("dynamic_group_quant_fp8")(gated, size))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_size", [7, 16, 80, 128, 512])
@pytest.mark.usefixtures("cpu")
def test_heads_are_normalised_and_turned_as_by_two_kernels(dtype: torch.dtype, head_size: int) -> None:
    """Bit for bit, since a head's sum is in the order of a row that is a warp's, which one of up to 2 KiB is."""
    query, key = (torch.randn(5, heads, head_size).to(dtype) for heads in (4, 2))
    weight, cache, positions = torch.randn(head_size), torch.randn(9, head_size).to(dtype), torch.arange(5)
    rotation = (head_size, head_size // 2 * 2, cache[:, : head_size // 2 * 2], NEOX)
    normed = (functional("rms_norm")(query, weight, EPSILON), functional("rms_norm")(key, None, EPSILON))
    got = functional("fused_qk_norm_rope")(positions, query, key, weight, None, EPSILON, *rotation)
    same(got, functional("rotary_embedding")(positions, *normed, *rotation))


@pytest.mark.parametrize("order", range(1, 5))
def test_every_schedule_quantises_to_the_same_bits(order: int, cpu: Any) -> None:
    """Threads up, down, shuffled, and warps one after the other in both directions."""
    found: list[list[Tensor]] = []
    for cpu.order in (0, order):
        torch.manual_seed(1)
        found.append([])
        for size in (64, 1000, 4096):
            x = torch.randn(3, size).bfloat16()
            for op, rest in (
                ("dynamic_quant_fp8", ()),
                ("dynamic_quant_fp8", (PER_TENSOR,)),
                ("silu_and_mul_dynamic_quant_fp8", ()),
                ("dynamic_group_quant_fp8", (size // 4,)),
                ("silu_and_mul_static_quant_fp8", (torch.tensor([0.01]),)),
                ("rms_norm_dynamic_quant_fp8", (None, EPSILON)),
                ("fused_add_rms_norm_dynamic_quant_fp8", (x.flip(0), None, EPSILON)),
            ):
                found[-1] += results(implementation(op)(x, *rest))
            query, key = torch.randn(4, 64), torch.randn(4, 32)
            heads = (torch.arange(4), query, key, None, torch.randn(16), EPSILON, 16, 16, torch.randn(4, 16), NEOX)
            found[-1] += results(implementation("fused_qk_norm_rope")(*heads))
    for one, other in zip(*found, strict=True):
        assert not different(one, other).any()


@pytest.fixture(scope="session")
def narrow(harness: Any) -> Callable[[Tensor, int], tuple[Tensor, Tensor]]:
    """Give the conversion without an instruction, and NVIDIA's, of float32 by their bits."""
    run = ctypes.CDLL(str(harness.build("narrow", ("-O1", "-shared", "-fPIC"), (), door="narrow.cpp"))).harness_narrow

    def convert(bits: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return bytes in the format of a number, ours and NVIDIA's."""
        made = [torch.empty(bits.numel(), dtype=torch.uint8) for _ in range(2)]
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (bits, *made)]
        run(pointers[0], ctypes.c_size_t(bits.numel()), number, *pointers[1:])
        return made[0], made[1]

    return convert


@pytest.mark.parametrize("fp8", FP8)
def test_older_gpus_convert_as_nvidia_does(fp8: torch.dtype, narrow: Callable[[Tensor, int], Any]) -> None:
    """All upper halves of a float32, with lower halves on, beside and between the middles of upper ones."""
    upper = torch.arange(65536, dtype=torch.int64) << 16
    lower = torch.tensor([0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF])
    bits = (upper[:, None] + lower).flatten()
    bits = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
    ours, theirs = (each.view(fp8) for each in narrow(bits, FORMATS[fp8]))
    assert not different(ours, theirs).any()
    signs = bits.view(torch.float32).signbit()
    assert torch.equal(ours.float().signbit() & ~ours.float().isnan(), signs & ~ours.float().isnan())
