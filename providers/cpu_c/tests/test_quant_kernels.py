"""The quantised kernels against native, bit for bit, on every instruction set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_cpu_c import quant_kernels
from vllm_ir_provider_cpu_c.predicates import DTYPES
from vllm_ir_provider_cpu_c.quantization import QUANTIZED

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from torch import Tensor

    Native = Callable[..., Any]
    Same = Callable[[Any, Any], None]

EPSILON = 1e-6
OPS = tuple(name for name in ops.__all__ if "quant_fp8" in name)
SIZES = (1, 2, 7, 8, 31, 33, 64, 576, 2048, 2049, 5000)
FP8 = tuple(QUANTIZED)


def copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments that may be written."""
    return tuple(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args)


def calls(name: str, x: Tensor, dtype: torch.dtype) -> list[tuple[Any, ...]]:
    """Return calls of an op for an x in every way that it can be asked.

    silu is handed a gate that is large: there native's value does not hang on which `exp` torch took for the row's end.
    """
    size = x.shape[-1]
    residual, one, bound = x.flip(-1), torch.tensor([0.013]), torch.tensor(1.1)
    if name.startswith("silu"):
        x = torch.cat((x.abs() + 100, x), dim=-1)
        if x.dtype == torch.float16:
            x = torch.cat((torch.full_like(residual, 64.0), residual), dim=-1)
    weights = (None, torch.randn(size).to(x.dtype), torch.randn(size))
    found = [(per_token, cut, dtype) for per_token in (True, False) for cut in (None, bound)]
    groups = [(g, c, u, dtype) for g in sorted({1, size}) for c in (False, True) for u in (False, True)]
    made: dict[str, list[tuple[Any, ...]]] = {
        "static_quant_fp8": [(x, scale, dtype) for scale in (one, one[0], torch.rand(size) + 0.01)],
        "dynamic_quant_fp8": [(x, *rest) for rest in found],
        "dynamic_group_quant_fp8": [(x, *rest) for rest in groups],
        "rms_norm_static_quant_fp8": [(x, weight, one, EPSILON, dtype) for weight in weights],
        "rms_norm_dynamic_quant_fp8": [(x, weight, EPSILON, *rest) for weight in weights for rest in found],
        "fused_add_rms_norm_static_quant_fp8": [(x, residual, weight, one, EPSILON, dtype) for weight in weights],
        "fused_add_rms_norm_dynamic_quant_fp8": [
            (x, residual, weight, EPSILON, *rest) for weight in weights for rest in found
        ],
        "silu_and_mul_static_quant_fp8": [(x, one, dtype)],
        "silu_and_mul_dynamic_quant_fp8": [(x, *rest) for rest in found],
        "silu_and_mul_group_quant_fp8": [(x, *rest) for rest in groups],
    }
    return made[name]


def check(name: str, args: tuple[Any, ...], native: Native, same_bits: Same) -> None:
    """Require native's bits from both forms, and that the functional one writes no input."""
    impl = getattr(quant_kernels, name)
    assert impl.predicate(*args) is True
    kept = copies(args)
    expected = native(name, *args)
    same_bits((impl.functional or impl.impl_fn)(*args), expected)
    for arg, before in zip(args, kept, strict=True):
        if isinstance(arg, torch.Tensor):
            assert torch.equal(arg.nan_to_num(), before.nan_to_num())
    same_bits(impl.impl_fn(*kept), expected)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantisations_equal_native(name: str, dtype: torch.dtype, native: Native, same_bits: Same) -> None:
    """Every way to scale, every 8-bit dtype, rows shorter and longer than what is kept between two passes."""
    for i, size in enumerate(SIZES):
        for args in calls(name, torch.randn(3, size).to(dtype), FP8[i % 3]):
            check(name, args, native, same_bits)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_float32_exponent_and_every_tie(dtype: torch.dtype, native: Native, same_bits: Same) -> None:
    """Random bits of all exponents, NaN and infinities among them, then each value, each middle, and its neighbours."""
    bits = torch.randint(-(2**31), 2**31, (64, 1024), dtype=torch.int64).to(torch.int32).view(torch.float32)
    table = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    table = table[table.isfinite()].unique()
    middles = (table[1:] + table[:-1]) / 2
    beside = [torch.nextafter(middles, torch.full_like(middles, to)) for to in (float("inf"), float("-inf"))]
    for x in (bits, torch.cat((table, middles, *beside))):
        check("static_quant_fp8", (x, torch.ones(1), dtype), native, same_bits)
    scales = torch.tensor([0.0, 1e-45, 3e38, float("inf"), float("nan"), -2.0])
    for scale in scales:
        check("static_quant_fp8", (bits, scale, dtype), native, same_bits)
    for bound in scales:
        for per_token in (True, False):
            check("dynamic_quant_fp8", (bits, per_token, bound, dtype), native, same_bits)
    for power_of_two in (False, True):
        check("dynamic_group_quant_fp8", (bits, 8, False, power_of_two, dtype), native, same_bits)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", [name for name in OPS if not name.startswith("silu")])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_special_values_of_quantisations(
    name: str, dtype: torch.dtype, native: Native, same_bits: Same, special: Callable[[torch.dtype, int], Tensor]
) -> None:
    """NaN, infinities, subnormals, signed zeros, ties and extremes; a row of zeros has the least scale."""
    for dtype8 in FP8:
        for args in calls(name, special(dtype, 64), dtype8):
            check(name, args, native, same_bits)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("lie", ["packed", "transposed", "one", "four", "empty", "expanded"])
def test_quantised_rows_may_lie_anywhere(name: str, lie: str, native: Native, same_bits: Same) -> None:
    """Views, one to four dimensions, and no tokens, where one scale for all is the least one."""
    made = {
        "packed": lambda: torch.randn(4, 192)[:, 64:128],
        "transposed": lambda: torch.randn(3, 4, 64).transpose(0, 1),
        "one": lambda: torch.randn(64),
        "four": lambda: torch.randn(2, 5, 3, 128)[:, 1:4, ::2, :64],
        "empty": lambda: torch.randn(2, 0, 64),
        "expanded": lambda: torch.randn(1, 64).expand(5, 64),
    }
    for args in calls(name, made[lie]().bfloat16(), torch.float8_e4m3fn):
        x, *rest = args
        check(
            name,
            (x, *(made[lie]().bfloat16() if i == 0 and "add" in name else a for i, a in enumerate(rest))),
            native,
            same_bits,
        )


@pytest.mark.parametrize("name", OPS)
def test_threads_change_no_bit_of_a_quantisation(
    name: str, threads: Callable[[int], AbstractContextManager[None]], same_bits: Same
) -> None:
    """Also not where one scale is found over all rows, by several threads at once."""
    impl = getattr(quant_kernels, name)
    for args in calls(name, torch.randn(500, 1024), torch.float8_e4m3fn):
        with threads(1):
            expected = (impl.functional or impl.impl_fn)(*args)
        with threads(3):
            same_bits((impl.functional or impl.impl_fn)(*args), expected)


@pytest.mark.parametrize("name", ["fused_add_rms_norm_static_quant_fp8", "fused_add_rms_norm_dynamic_quant_fp8"])
def test_a_donated_residual_holds_the_sum(name: str) -> None:
    """It is the last result, and x is not touched; what is not contiguous, or is x itself, is left alone."""
    impl = getattr(quant_kernels, name)
    for args in calls(name, torch.randn(4, 64), torch.float8_e4m3fn):
        x, residual, *rest = copies(args)
        *_, total = impl.impl_fn(x, residual, *rest)
        assert total is residual
        assert torch.equal(x, args[0])
        wide = torch.randn(4, 192)
        before = wide.clone()
        *_, total = impl.impl_fn(wide[:, :64], wide[:, 64:128], *rest)
        assert total.is_contiguous()
        assert torch.equal(wide, before)
        *_, total = impl.impl_fn(x, x, *rest)
        assert total is not x
        assert torch.equal(x, args[0])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", [name for name in OPS if "dynamic_quant" not in name])
def test_a_quantised_row_is_the_same_alone_and_in_any_batch(name: str) -> None:
    """Batch invariance, where it is declared."""
    impl = getattr(quant_kernels, name)
    assert impl.batch_invariant
    x = torch.randn(33, 576).bfloat16()
    rows = calls(name, x, torch.float8_e4m3fn)
    for args in rows:
        whole = (impl.functional or impl.impl_fn)(*args)
        given = [a[16:17] if isinstance(a, torch.Tensor) and a.shape[:1] == (33,) else a for a in args]
        alone = (impl.functional or impl.impl_fn)(*given)
        pick = [result[16:17] for result in (whole if isinstance(whole, tuple) else (whole,))]
        for one, other in zip(alone if isinstance(alone, tuple) else (alone,), pick, strict=True):
            assert torch.equal(one.float(), other.float())


def test_what_finds_a_scale_promises_nothing_about_batches() -> None:
    """One scale for a tensor hangs on every row, and the declaration is for all calls of an op."""
    assert not any(getattr(quant_kernels, name).batch_invariant for name in OPS if "dynamic_quant" in name)
