"""The comparison sees what is wrong in quantisation: faults put into the sources of its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from comparing import tensors
from faults import changed, roomy
from launches import EPSILON, order_depends
from vllm_ir import ops
from vllm_ir_provider_triton import declared

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from interpreter import Interpreter

FP8, FNUZ, E5M2 = torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2
POWERS = True
EXACT = ("static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8")
WEIGHT = torch.linspace(0.5, 3.0, 1000).bfloat16()


def static() -> tuple[str, tuple[Any, ...]]:
    """Return a call of static_quant_fp8 whose numbers lie beyond the limit, too."""
    return "static_quant_fp8", (roomy(9, 1000) * 200, torch.tensor([0.7]))


def midpoints(dtype: torch.dtype) -> torch.Tensor:
    """Return what lies midway between the neighbours of a format, in float32."""
    codes = torch.arange(128).to(torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()]
    return (finite[1:] + finite[:-1]) / 2


def midway() -> tuple[str, tuple[Any, ...]]:
    """Return a call of static_quant_fp8 whose numbers lie midway between those of the format."""
    return "static_quant_fp8", (midpoints(FP8).repeat(3, 1), torch.ones(1))


def nearly_midway() -> tuple[str, tuple[Any, ...]]:
    """Return the same for a scale whose reciprocal is not exact."""
    return "static_quant_fp8", (midpoints(FP8).repeat(3, 1) * 0.7, torch.tensor([0.7]))


def midway_in_groups() -> tuple[str, tuple[Any, ...]]:
    """Return a call of dynamic_group_quant_fp8 whose groups lie so by their own scale."""
    row = midpoints(FP8)[:99] * torch.tensor(3.1).div(448)
    return "dynamic_group_quant_fp8", (torch.cat((row.new_full((1,), 3.1), row)).repeat(3, 2), 100)


def channels() -> tuple[str, tuple[Any, ...]]:
    """Return a call of static_quant_fp8 with a scale for each column."""
    return "static_quant_fp8", (roomy(9, 1000), torch.rand(1000) + 0.01, FNUZ)


def subnormal() -> tuple[str, tuple[Any, ...]]:
    """Return a call of static_quant_fp8 whose results are subnormal, and zeros of both signs."""
    return "static_quant_fp8", (roomy(9, 1000) * 2.0**-8, torch.ones(1), FNUZ)


def token() -> tuple[str, tuple[Any, ...]]:
    """Return a call of dynamic_quant_fp8 with rows of NaN and of nothing, and a bound."""
    x = roomy(9, 1000)
    x[1, 3], x[2] = float("nan"), 0.0
    return "dynamic_quant_fp8", (x, True, torch.tensor([3.0]))


def tensor() -> tuple[str, tuple[Any, ...]]:
    """Return a call of dynamic_quant_fp8 with one scale, whose largest is the last element."""
    x = roomy(9, 1000)
    x[8, 999] = 50.0
    return "dynamic_quant_fp8", (x, False, None)


def group() -> tuple[str, tuple[Any, ...]]:
    """Return a call of dynamic_group_quant_fp8 with scales that are powers of two, and one that is already."""
    x = roomy(9, 1000)
    x[0, :100] = 448.0
    x[1, :100] = 0.0
    return "dynamic_group_quant_fp8", (x, 100, True, POWERS)


def divided() -> tuple[str, tuple[Any, ...]]:
    """Return a call of silu_and_mul_group_quant_fp8."""
    return "silu_and_mul_group_quant_fp8", (roomy(9, 2000), 100, False, not POWERS, E5M2)


def fused() -> tuple[str, tuple[Any, ...]]:
    """Return a call of fused_add_rms_norm_dynamic_quant_fp8."""
    return "fused_add_rms_norm_dynamic_quant_fp8", (roomy(9, 1000), roomy(9, 1000), WEIGHT, EPSILON)


def norm() -> tuple[str, tuple[Any, ...]]:
    """Return a call of rms_norm_static_quant_fp8."""
    return "rms_norm_static_quant_fp8", (roomy(9, 1000), WEIGHT.float(), torch.tensor([0.01]), EPSILON)


def heads() -> tuple[str, tuple[Any, ...]]:
    """Return a call of fused_qk_norm_rope that turns a part of each head."""
    cache, weight = torch.randn(7, 40).bfloat16(), torch.randn(80)
    given = (torch.arange(9) % 7, roomy(9, 320), roomy(9, 80), weight, -weight, EPSILON, 80, 40, cache, True)
    return "fused_qk_norm_rope", given


NORMALISED = "v = rounded(v, x.dtype.element_ty)"
FAULTS: dict[str, tuple[Callable[[], tuple[str, tuple[Any, ...]]], str, str, str]] = {
    "no saturation": (static, "fp8.py", "v = tl.minimum(v, 1.0 * LIMIT, tl.PropagateNan.ALL)", "v = v"),
    "a division for a multiply": (
        nearly_midway,
        "scaled.py",
        "v * tl.div_rn(1.0, tl.load(scale))",
        "v / tl.load(scale)",
    ),
    "a scale of another column": (channels, "scaled.py", "tl.load(scale + column,", "tl.load(scale + column // 2,"),
    "ties away from zero": (midway, "fp8.py", "+ ((size >> cut) & 1)", "+ 1"),
    "subnormal numbers lost": (
        subnormal,
        "fp8.py",
        "tl.where(size < ((128 - bias) << 23), subnormal,",
        "tl.where(size < ((128 - bias) << 23), 0,",
    ),
    "a negative zero where there is none": (subnormal, "fp8.py", "tl.where(code == 0, 0, sign)", "sign"),
    "NaN passed over": (
        token,
        "fp8.py",
        "scale, 1.0 / (LIMIT * 512), tl.PropagateNan.ALL",
        "scale, 1.0 / (LIMIT * 512)",
    ),
    "no least scale": (token, "fp8.py", "1.0 / (LIMIT * 512)", "0.0"),
    "a bound not heeded": (token, "fp8.py", "    if BOUNDED:", "    if not BOUNDED:"),
    "a largest with its sign": (token, "fp8.py", "& 0x7FFFFFFF", "& -1"),
    "a tensor without its last": (tensor, "peak.py", "(row < rows)[:, None]", "(row < rows - 1)[:, None]"),
    "powers rounded down": (group, "fp8.py", "+ ((bits & 0x7FFFFF) != 0).to(tl.int32)", ""),
    "powers rounded up twice": (group, "fp8.py", "((bits & 0x7FFFFF) != 0).to(tl.int32)", "1"),
    "scales in rows": (
        group,
        "grouped.py",
        "row * row_step + group * group_step",
        "row * group_step + group * row_step",
    ),
    "a multiply for a division": (
        midway_in_groups,
        "grouped.py",
        "tl.div_rn(v, factor[:, None])",
        "(v * tl.div_rn(1.0, factor)[:, None])",
    ),
    "a product not rounded": (
        divided,
        "producing.py",
        "rounded(rounded(activated(v.to(tl.float32), 0), v.dtype) * up, v.dtype)",
        "(rounded(activated(v.to(tl.float32), 0), v.dtype) * up)",
    ),
    "normalised values not rounded": (norm, "norm_quant.py", NORMALISED, "v = v"),
    "a largest of what is not rounded": (
        fused,
        "norm_quant.py",
        "    v = v * root[:, None]",
        "    v = v * root[:, None] * 1.001",
    ),
    "a sum with its padding": (fused, "norm_quant.py", "size.to(tl.float32)", "(size + 1).to(tl.float32)"),
    "a head not rounded": (heads, "qk_norm_rope.py", "return rounded(v, dtype)", "return v"),
    "a rest that is not counted": (
        heads,
        "qk_norm_rope.py",
        "total += row_sums(rest * rest",
        "total += 0.0 * row_sums(rest * rest",
    ),
    "a weight of the other tensor": (
        heads,
        "qk_norm_rope.py",
        "            key_weight,\n            key_head_stride",
        "            query_weight,\n            key_head_stride",
    ),
}


def wrong(call: tuple[str, tuple[Any, ...]]) -> bool:
    """Tell whether some result is not native's: of quantisation alone any bit, else more than two in 10,000."""
    op, args = call
    got = tensors(declared.FREE[op].func_impl_fn(*args))
    wanted = tensors(getattr(ops, op).impls["native"].impl_fn(*args))
    for one, other in zip(got, wanted, strict=True):
        a, b = one.double(), other.double()
        differing = ((a != b) | (a.signbit() != b.signbit())) & ~(a.isnan() & b.isnan())
        if int(differing.sum()) > (0 if op in EXACT else 1 + a.numel() * 2e-4):
            return True
    return False


@pytest.mark.parametrize("name", FAULTS)
def test_a_seeded_fault_of_quantisation_is_seen(name: str, interpreter: Interpreter, tmp_path: Path) -> None:
    """The call is right with the kernel as it is, and wrong with the fault in it; integers round."""
    interpreter.arch = "gfx942"
    make, file, old, new = FAULTS[name]
    call = make()
    assert not wrong(call)
    load = changed(name, file, old, new, tmp_path)
    interpreter.change |= {
        program: load(program) for program in {each.variant.program for each in interpreter.launches}
    }
    assert wrong(call)


def test_an_order_of_normalised_sums_that_goes_by_the_block_is_seen(
    interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch invariance rests on the order of the sum; a sum that the block orders is caught."""
    load = changed("quant order", "numbers.py", "if HALVINGS == 0:", "if HALVINGS >= 0:", tmp_path)
    interpreter.change["norm_quant"] = load("norm_quant")
    x = torch.randn(64, 1000)
    impl = declared.FIXED["rms_norm_dynamic_quant_fp8"]
    assert order_depends(lambda: impl.impl_fn(x, None, EPSILON)[1], 1000, monkeypatch)
