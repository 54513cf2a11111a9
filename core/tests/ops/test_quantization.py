"""8-bit floats against a table of all their values, and scales to the bit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from vllm_ir import ops
from vllm_ir.errors import WrongArgument
from vllm_ir.ops.quantization import FP8_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

FP8 = tuple(FP8_MAX)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((8,), (5, 8), (2, 3, 8), (2, 1, 3, 8), (0, 8), (2, 0, 8), (3, 1), (2, 1024))
NAN, INF = float("nan"), float("inf")


def nearest(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return float32 values as the nearest of all values of an 8-bit dtype up to its limit, ties to the even code."""
    codes = torch.arange(256, dtype=torch.uint8)
    table = codes.view(dtype).double()
    keep = table.isfinite() & (table.abs() <= FP8_MAX[dtype]) & ~((table == 0) & (codes != 0))
    codes, table = codes[keep], table[keep]
    wide = values.double().flatten()
    distance = (wide.clamp(-FP8_MAX[dtype], FP8_MAX[dtype]).unsqueeze(-1) - table).abs()
    ties = distance == distance.amin(-1, keepdim=True)
    even = ties & (codes % 2 == 0)
    chosen = torch.where(even.any(-1), even.int().argmax(-1), ties.int().argmax(-1))
    found = table[chosen]
    found = torch.where(found == 0, torch.copysign(found, wide), found)
    return torch.where(wide.isnan(), NAN, found).to(dtype).reshape(values.shape)


def inverse(scale: Tensor) -> Tensor:
    """Return one over float32 values, rounded once."""
    return (1.0 / scale.double()).float()


def over(values: Tensor, divisor: Tensor | float) -> Tensor:
    """Return a float32 quotient, rounded once: twice as many bits leave nothing to round twice."""
    return (values.double() / divisor).float()


def dynamic(x: Tensor, dtype: torch.dtype, per_token: bool, bound: float | None = None) -> tuple[Tensor, Tensor]:
    """Return what a dynamic scale gives, row by row in Python."""
    rows = x.float().reshape(-1, x.shape[-1])
    peaks = [max(map(abs, row)) for row in rows.tolist()] if per_token else [float(rows.abs().max())]
    peak = torch.tensor(peaks if bound is None else [min(value, bound) for value in peaks])
    scale = over(peak, FP8_MAX[dtype]).clamp(min=1 / (512 * FP8_MAX[dtype]))
    quantized = nearest(rows * inverse(scale).unsqueeze(-1), dtype).reshape(x.shape)
    return quantized, scale.reshape((*x.shape[:-1], 1) if per_token else (1,))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_static(shape: tuple[int, ...], dtype: torch.dtype, lay: Any, sound: Any, same_bits: Any) -> None:
    """Times the rounded inverse of the scale is rounded once more, in every shape and layout, for every scale."""
    x = lay((torch.randn(shape) * 3).to(dtype))
    kept = x.clone()
    for scale in (torch.tensor(0.37), torch.tensor([0.0113]), torch.rand(shape[-1]) + 0.01):
        for quantized in FP8:
            wanted = nearest((x.float().double() * inverse(scale).double()).float(), quantized)
            for run in (ops.static_quant_fp8, ops.static_quant_fp8.torch_op):
                result = run(x, scale, dtype=quantized)
                same_bits(result, wanted)
                sound(result, [x, scale])
    assert torch.equal(x, kept)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if 0 not in shape], ids=str)
@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dynamic(
    shape: tuple[int, ...], per_token: bool, dtype: torch.dtype, lay: Any, sound: Any, same_bits: Any
) -> None:
    """The largest magnitude of a row or of the tensor makes the scale, and a bound cuts it, to the bit."""
    x = lay(torch.randn(shape).to(dtype))
    for quantized in FP8:
        for bound in (None, 1.3):
            wanted = dynamic(x, quantized, per_token, None if bound is None else float(torch.tensor(bound)))
            scale_ub = None if bound is None else torch.tensor([bound])
            for run in (ops.dynamic_quant_fp8, ops.dynamic_quant_fp8.torch_op):
                result = run(x, per_token, scale_ub, dtype=quantized)
                same_bits(result, wanted)
                sound(result, [x])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("ue8m0", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_group(shape: tuple[int, ...], ue8m0: bool, dtype: torch.dtype, lay: Any, sound: Any, same_bits: Any) -> None:
    """Each group is divided by its scale, which may be a power of two, to the bit."""
    x = lay(torch.randn(shape).to(dtype))
    for quantized in FP8:
        for size in {1, shape[-1] // 2 or 1, shape[-1]}:
            groups = x.float().reshape(*shape[:-1], shape[-1] // size, size)
            scales = over(groups.abs().amax(-1).clamp(min=1e-10), FP8_MAX[quantized])
            if ue8m0:
                scales = torch.tensor([power_from(value) for value in scales.flatten().tolist()]).reshape(scales.shape)
            wanted = nearest(over(groups, scales.double().unsqueeze(-1)), quantized).reshape(x.shape), scales
            for run in (ops.dynamic_group_quant_fp8, ops.dynamic_group_quant_fp8.torch_op):
                result = run(x, size, use_ue8m0=ue8m0, dtype=quantized)
                same_bits(result, wanted)
                sound(result, [x])


def power_from(value: float) -> float:
    """Return the least power of two that is not below a positive value."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_value_and_every_middle(dtype: torch.dtype) -> None:
    """Each value of the dtype stays, each middle of two goes to the even one, and a float32 beside it to its side."""
    table = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    table = table[table.isfinite() & (table.abs() <= FP8_MAX[dtype])].unique()
    middles = ((table[1:].double() + table[:-1].double()) / 2).float()
    beside = [torch.nextafter(middles, torch.full_like(middles, to)) for to in (INF, -INF)]
    one = torch.ones(1)
    assert torch.equal(ops.static_quant_fp8(table, one, dtype).float(), table)
    codes = ops.static_quant_fp8(middles, one, dtype).view(torch.uint8)
    assert not (codes % 2).any()
    assert torch.equal(ops.static_quant_fp8(beside[0], one, dtype).float(), table[1:])
    assert torch.equal(ops.static_quant_fp8(beside[1], one, dtype).float(), table[:-1])


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("of", DTYPES, ids=str)
def test_saturation(dtype: torch.dtype, of: torch.dtype) -> None:
    """What is beyond the limit, also infinity, becomes the limit of its sign; NaN stays NaN."""
    top = FP8_MAX[dtype]
    x = torch.tensor([top, 1.07 * top, INF, torch.finfo(of).max, -top, -INF, torch.finfo(of).min, NAN, 0.0, -0.0])
    got = ops.static_quant_fp8(x.double().to(of), torch.tensor(1.0), dtype).float()
    wanted = torch.tensor([top, top, top, top, -top, -top, -top, NAN, 0.0, 0.0])
    assert torch.equal(got.nan_to_num(7), wanted.nan_to_num(7))
    assert got.isnan().tolist() == wanted.isnan().tolist()
    signed = dtype != torch.float8_e4m3fnuz  # it has no negative zero
    assert got[-2:].signbit().tolist() == [False, signed]


def test_the_limit_of_e4m3fnuz_is_that_of_vllm() -> None:
    """224, though the dtype could hold 240; the other limits are the dtypes' own."""
    limits = {dtype: torch.finfo(dtype).max for dtype in FP8}
    assert limits.pop(torch.float8_e4m3fnuz) == 240
    assert {dtype: FP8_MAX[dtype] for dtype in limits} == limits
    x = torch.tensor([500.0])
    assert ops.static_quant_fp8(x, torch.ones(1), torch.float8_e4m3fnuz).float().item() == 224
    assert ops.dynamic_quant_fp8(x, dtype=torch.float8_e4m3fnuz)[1].item() == over(x, 224.0).item()


def test_the_scale_is_inverted_first_and_groups_are_divided() -> None:
    """There are values that a division would round otherwise, and for these the two ops differ."""
    x = torch.arange(1, 449, dtype=torch.float32).repeat(64, 1) * (1 + torch.arange(64).unsqueeze(1) / 64)
    by_row, scale = ops.dynamic_quant_fp8(x)
    by_group, scales = ops.dynamic_group_quant_fp8(x, 448)
    assert torch.equal(scale, scales)
    differ = by_row.view(torch.uint8) != by_group.view(torch.uint8)
    assert differ.any()
    assert torch.equal(by_row.float()[differ], nearest(x * inverse(scale), torch.float8_e4m3fn).float()[differ])
    assert torch.equal(by_group.float()[differ], nearest(over(x, scale.double()), torch.float8_e4m3fn).float()[differ])


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_nothing_but_zeros(dtype: torch.dtype) -> None:
    """A row of zeros has the least scale and stays zeros."""
    x = torch.zeros(2, 8)
    for per_token in (True, False):
        quantized, scale = ops.dynamic_quant_fp8(x, per_token, dtype=dtype)
        assert (scale == torch.tensor(1 / (512 * FP8_MAX[dtype]))).all()
        assert not quantized.float().any()
    quantized, scales = ops.dynamic_group_quant_fp8(x, 4, dtype=dtype)
    assert torch.equal(scales, over(torch.full((2, 2), 1e-10), FP8_MAX[dtype]))
    assert not quantized.float().any()


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)], ids=str)
def test_no_tokens(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """No tokens have no scales of their own, and the least one as a tensor."""
    x = torch.empty(shape)
    quantized, scale = ops.dynamic_quant_fp8(x, dtype=dtype)
    assert (quantized.shape, scale.shape) == (shape, (*shape[:-1], 1))
    quantized, scale = ops.dynamic_quant_fp8(x, per_token=False, dtype=dtype)
    assert (quantized.shape, scale.tolist()) == (shape, [torch.tensor(1 / (512 * FP8_MAX[dtype])).item()])
    quantized, scales = ops.dynamic_group_quant_fp8(x, 4, dtype=dtype)
    assert (quantized.shape, scales.shape) == (shape, (*shape[:-1], 2))


def test_no_groups() -> None:
    """A row without elements has no groups, and nothing to quantise."""
    quantized, scales = ops.dynamic_group_quant_fp8(torch.empty(3, 0), 4, column_major_scales=True)
    assert (quantized.shape, scales.shape) == ((3, 0), (3, 0))


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_nan_and_infinity_take_their_row(dtype: torch.dtype) -> None:
    """A NaN is in the scale and in all of its row, an infinity in the scale, and no other row knows of it."""
    x = torch.tensor([[1.0, NAN, 2.0, 3.0], [1.0, INF, 2.0, -3.0], [1.0, 2.0, 3.0, 4.0]])
    quantized, scale = ops.dynamic_quant_fp8(x, dtype=dtype)
    values = quantized.float()
    assert values[0].isnan().all()
    assert (scale[0].isnan().item(), scale[1].item()) == (True, INF)
    assert (values[1, 0].item(), values[1, 1].isnan().item(), values[1, 3].item()) == (0, True, 0)
    assert torch.equal(values[2], ops.dynamic_quant_fp8(x[2], dtype=dtype)[0].float())
    assert ops.dynamic_quant_fp8(x, per_token=False, dtype=dtype)[1].isnan().all()
    for ue8m0 in (False, True):
        quantized, scales = ops.dynamic_group_quant_fp8(x, 2, use_ue8m0=ue8m0, dtype=dtype)
        assert scales.isnan().tolist() == [[True, False], [False, False], [False, False]]
        assert scales[1, 0].item() == INF
        assert quantized.float().isnan().tolist() == [
            [True, True, False, False],
            [False, True, False, False],
            [False] * 4,
        ]
    bounded = ops.dynamic_quant_fp8(x, scale_ub=torch.tensor(2.0), dtype=dtype)[1]
    assert (bounded[0].isnan().item(), bounded[1].item()) == (True, over(torch.tensor(2.0), FP8_MAX[dtype]).item())


@pytest.mark.parametrize("of", DTYPES, ids=str)
def test_subnormal_inputs(of: torch.dtype, same_bits: Any) -> None:
    """Nothing is flushed on the way: the smallest values of a dtype over a scale as small are themselves."""
    tiny = torch.finfo(of).smallest_normal / 4
    x = torch.tensor([tiny, -tiny, 3 * tiny], dtype=torch.float64).to(of)
    scale = x.float()[:1]
    wanted = nearest((x.float().double() * inverse(scale).double()).float(), torch.float8_e4m3fn)
    same_bits(ops.static_quant_fp8(x, scale), wanted)
    same_bits(ops.dynamic_quant_fp8(x), dynamic(x, torch.float8_e4m3fn, per_token=True))


@pytest.mark.parametrize("exponent", range(-20, 20, 3))
def test_powers_of_two_and_their_neighbours(exponent: int) -> None:
    """A scale that is a power of two stays, and the next float32 above it goes to the next power."""
    power = torch.tensor(2.0**exponent)
    peaks = torch.stack([torch.nextafter(power, torch.tensor(0.0)), power, torch.nextafter(power, torch.tensor(INF))])
    scales = ops.dynamic_group_quant_fp8((peaks * 448).unsqueeze(1), 1, use_ue8m0=True)[1]
    exact = over(peaks * 448, 448.0)
    assert torch.equal(exact, peaks)
    assert scales.flatten().tolist() == [2.0**exponent, 2.0**exponent, 2.0 ** (exponent + 1)]


@pytest.mark.parametrize("shape", [(4,), (5, 8), (1, 8), (2, 3, 8), (2, 1, 3, 12), (0, 8), (5, 4)], ids=str)
def test_column_major_scales(shape: tuple[int, ...], same_bits: Any) -> None:
    """The values are those of the other layout, and scales of one group lie next to each other, token by token."""
    x = torch.randn(shape)
    quantized, scales = ops.dynamic_group_quant_fp8(x, 4, column_major_scales=True)
    same_bits((quantized, scales), ops.dynamic_group_quant_fp8(x, 4))
    tokens = math.prod(shape[:-1])
    if len(shape) == 1:
        assert scales.is_contiguous()
    elif scales.numel():
        assert scales.stride(-1) == tokens
        assert scales.stride(-2) == 1
        assert scales.flatten(0, -2).t().is_contiguous()


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_column_major_strides_under_compile(tokens: int, same_bits: Any) -> None:
    """A compiled function gives the same strides and values as eager, also where the number of tokens is open."""

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise by groups."""
        quantized, scales = ops.dynamic_group_quant_fp8(x + 1, 4, column_major_scales=True, use_ue8m0=True)
        return quantized, scales

    x = torch.randn(tokens, 8)
    wanted = run(x)
    got = torch.compile(run, backend="aot_eager", dynamic=True, fullgraph=True)(x)
    same_bits(got, wanted)
    assert [result.stride() for result in got] == [result.stride() for result in wanted]


def test_a_compiled_function_tells_dtypes_apart(same_bits: Any) -> None:
    """A dtype is a constant of a graph: another one is another graph, never the old one's result."""

    def run(x: Tensor, dtype: torch.dtype) -> Tensor:
        """Quantise over a scale of a half."""
        result: Tensor = ops.static_quant_fp8(x, torch.tensor(0.5), dtype)
        return result

    torch.compiler.reset()
    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    x = torch.randn(3, 8)
    for dtype in (*FP8, *FP8):
        same_bits(compiled(x, dtype), run(x, dtype))


@pytest.mark.parametrize("name", ["static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8"])
def test_gradients_under_compile_are_those_of_eager(name: str) -> None:
    """A loss of the values that come back, in a graph with a backward."""
    op = getattr(ops, name)
    x, *rest = op.generate_inputs(num_tokens=3, hidden_size=8, quant_dtype=torch.float8_e5m2)

    def loss(x: Tensor) -> Tensor:
        """Return half the sum of what is left after quantisation."""
        found = op(x, *rest)
        values: Tensor = found[0] if isinstance(found, tuple) else found
        return values.float().mul(0.5).sum()

    torch.compiler.reset()
    gradients = []
    for run in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        leaf = x.clone().requires_grad_()
        run(leaf).backward()
        gradients.append(leaf.grad)
    assert gradients[0] is not None
    assert gradients[0].any()
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("name", ["static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8"])
def test_gradients_are_those_of_the_casts(name: str) -> None:
    """As with a plain cast a gradient goes straight through, in 8 bits, but not to what has saturated."""
    op = getattr(ops, name)
    inputs = list(op.generate_inputs(num_tokens=3, hidden_size=8))
    inputs[0] = (inputs[0] * 4).requires_grad_()
    quantized, *_ = found if isinstance(found := op(*inputs), tuple) else (found,)
    (gradient,) = torch.autograd.grad(quantized, inputs[0], torch.ones_like(quantized))
    native, *_ = found if isinstance(found := op.declaration.native(*inputs), tuple) else (found,)
    (wanted,) = torch.autograd.grad(native, inputs[0], torch.ones_like(native))
    assert torch.equal(gradient, wanted)
    assert gradient.any()
    if name == "static_quant_fp8":
        scale = inputs[1]
        saturated = (inputs[0] / scale).abs() > 448
        assert saturated.any()
        assert not gradient[saturated].any()
        torch.testing.assert_close(gradient[~saturated], (1 / scale).expand(3, 8)[~saturated])


@given(
    rows=st.lists(st.integers(1, 3), max_size=3),
    groups=st.integers(1, 5),
    size=st.integers(1, 9),
    dtype=st.sampled_from(FP8),
    magnitude=st.integers(-120, 120),
)
def test_any_magnitude(rows: list[int], groups: int, size: int, dtype: torch.dtype, magnitude: int) -> None:
    """Whatever the size of values, nothing is beyond the limit, and what comes back is a rounding away."""
    x = torch.randn(*rows, groups * size) * 2.0**magnitude
    limit = FP8_MAX[dtype]
    quantized, scales = ops.dynamic_group_quant_fp8(x, size, dtype=dtype)
    assert quantized.float().abs().max() <= limit
    back = quantized.float() * scales.repeat_interleave(size, dim=-1)
    step = 2.0**-3 if dtype == torch.float8_e5m2 else 2.0**-4
    bound = x.abs() * step * 1.001 + scales.repeat_interleave(size, dim=-1) * torch.finfo(dtype).smallest_normal
    assert ((back - x).abs() <= bound).all()
    assert torch.equal(ops.dynamic_group_quant_fp8(x, size, column_major_scales=True, dtype=dtype)[1], scales)


SENTENCES: tuple[tuple[Callable[[], object], str, str], ...] = (
    (
        lambda: ops.static_quant_fp8(torch.ones(2, 4), torch.ones(3)),
        "static_quant_fp8(): argument 'scale' is of shape (3,)",
        "one value, of shape () or (1,), or shape (4,), the size of a row",
    ),
    (
        lambda: ops.dynamic_quant_fp8(torch.ones(2, 4), scale_ub=torch.ones(4)),
        "dynamic_quant_fp8(): argument 'scale_ub' is of shape (4,)",
        "one value, of shape () or (1,)",
    ),
    (
        lambda: ops.static_quant_fp8(torch.ones(2, 4), torch.ones(1, dtype=torch.float16)),
        "static_quant_fp8(): argument 'scale' is of dtype torch.float16",
        "torch.float32",
    ),
    (
        lambda: ops.dynamic_quant_fp8(torch.ones(2, 0)),
        "dynamic_quant_fp8(): argument 'x' is of last size 0",
        "at least one element in a row",
    ),
    (
        lambda: ops.dynamic_group_quant_fp8(torch.ones(2, 4), 3),
        "dynamic_group_quant_fp8(): argument 'group_size' is 3",
        "a number from 1 on that divides 4, the size of a row",
    ),
    (
        lambda: ops.dynamic_quant_fp8(torch.ones(2, 4), dtype=torch.int8),
        "dynamic_quant_fp8(): argument 'dtype' is torch.int8",
        "torch.float8_e4m3fn, torch.float8_e4m3fnuz or torch.float8_e5m2",
    ),
    (
        lambda: ops.static_quant_fp8(torch.ones(2, 4), torch.ones(1), "fp8"),
        "static_quant_fp8(): argument 'dtype' is str 'fp8'",
        "a torch.dtype",
    ),
)


@pytest.mark.parametrize(("call", "got", "wanted"), SENTENCES, ids=[got for _, got, _ in SENTENCES])
def test_a_wrong_argument_is_told_in_a_sentence(call: Callable[[], object], got: str, wanted: str) -> None:
    """Op, parameter, what was got, and what would do."""
    with pytest.raises(WrongArgument) as caught:
        call()
    assert str(caught.value) == f"{got}, wanted {wanted}."
