"""The quantising kernels and fused_qk_norm_rope against native, in Triton's interpreter made exact."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import pytest
import torch
from comparing import calls_of, complaint, copies, forms, same, tensors
from launches import EPSILON, order_depends
from vllm_ir import ops
from vllm_ir_provider_triton import configuration, declared
from vllm_ir_testkit.distance import compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from interpreter import Interpreter

FORMATS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz)
DTYPES = ("float32", "bfloat16", "float16")
EXACT = ("static_quant_fp8", "dynamic_quant_fp8", "dynamic_group_quant_fp8")
PROGRAMS = {"static": "scaled", "dynamic": "grouped", "group": "grouped"}
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on
NEOX = True


def wrong(op: str, got: Any, wanted: Any, *, tiny: bool = False, donated: bool = False) -> str | None:
    """Return what is wrong with results: of quantisation any bit, of what is computed first what the op allows."""
    declared_op = getattr(ops, op)
    for one, other in zip(tensors(got), tensors(wanted), strict=True):
        if not donated and one.stride() != other.stride():
            return f"strides {one.stride()}, native {other.stride()}"
        if op in EXACT:
            if not same(one, other):
                return f"{one.dtype}: other bits"
        elif one.is_contiguous() and (what := complaint(declared_op, one, other, tiny=tiny)) is not None:
            return what
    return None


@pytest.mark.parametrize("op", declared.FREE)
def test_quantisation_matches_native(op: str, interpreter: Interpreter) -> None:
    """The test kit's shapes, strides and special values in bfloat16; in place and not; inputs stay what they were."""
    declared_op, impl = getattr(ops, op), declared.FREE[op]
    taken = 0
    for case, args in calls_of(op, "bfloat16"):
        if impl.supports_args(*args) is not True:
            continue
        taken += 1
        wanted = declared_op.impls["native"].impl_fn(*args)
        for name, function in forms(impl).items():
            donating = name == "impl_fn" and impl.inplace
            given, before = copies(args) if donating else args, copies(args)
            what = wrong(op, function(*given), wanted, tiny=case.fill == "subnormal", donated=donating)
            assert what is None, f"{case}, {name}: {what}"
            if not donating:
                kept = [a for a in zip(args, before, strict=True) if isinstance(a[0], torch.Tensor)]
                assert all(same(one, other) for one, other in kept), f"{case}: an input was written"
    assert taken >= 30
    kind = next((program for part, program in PROGRAMS.items() if f"{part}_quant" in op), "qk_norm_rope")
    programs = {"norm_quant" if "rms_norm" in op else kind}
    if "dynamic_quant" in op and "norm" not in op:
        programs |= {"peak", "scaled"}
    assert {each.variant.program for each in interpreter.launches} == programs


def call(op: str, dtype: str, size: int, **keywords: Any) -> tuple[Any, ...]:
    """Return a call of five rows that have NaN, infinity, zeros of both signs and subnormal numbers in them."""
    args: tuple[Any, ...] = getattr(ops, op).generate_inputs(
        num_tokens=5, hidden_size=size, dtype=getattr(torch, dtype), **keywords
    )
    x = args[0]
    x[0, 1 % size], x[1, 2 % size] = float("nan"), -float("inf")
    x[2] = 0.0
    x[2, 0] = -0.0
    x[3] = 2.0**-24
    return args


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("op", [op for op in declared.FREE if "quant" in op])
def test_every_format_of_every_architecture(op: str, arch: str, interpreter: Interpreter) -> None:
    """With an instruction and without; every option of the op, and rows with special values."""
    interpreter.arch = arch
    options: list[dict[str, Any]] = [{}]
    if op.startswith("static"):
        options.append({"per_channel": True})
    elif "dynamic_quant" in op:
        options.append({"bounded": True})
        if "norm" not in op:
            options.extend(({"per_token": False}, {"per_token": False, "bounded": True}))
    elif "group" in op:
        options.extend(({"column_major_scales": True}, {"use_ue8m0": True, "group_size": 20}))
    for dtype in DTYPES:
        for quant_dtype in FORMATS:
            for option in options:
                args = call(op, dtype, 320, quant_dtype=quant_dtype, **option)
                wanted = getattr(ops, op).impls["native"].impl_fn(*args)
                what = wrong(op, declared.FREE[op].func_impl_fn(*args), wanted)
                assert what is None, f"{dtype}, {quant_dtype}, {option}: {what}"
    launches = [each for each in interpreter.launches if each.variant.program != "peak"]
    assert {each.variant.constants[1] for each in launches} == ({True, False} if arch == "sm_90" else {False})


@pytest.mark.parametrize("op", [op for op in declared.FREE if "quant" in op])
def test_quantised_rows_of_any_size(op: str, interpreter: Interpreter) -> None:
    """Odd ones, ones that fill a block, and ones too long for it, which are read twice; norms refuse those."""
    for size in (1, 63, 1000, 16384, 20000):
        args = getattr(ops, op).generate_inputs(num_tokens=2, hidden_size=size, dtype=torch.bfloat16)
        if "group" in op:
            args = (args[0], size, *args[2:])
        if "norm" in op and size > configuration.LARGEST_BLOCK:
            assert not declared.FREE[op].supports_args(*args)
            continue
        what = wrong(op, declared.FREE[op].func_impl_fn(*args), getattr(ops, op).impls["native"].impl_fn(*args))
        assert what is None, f"{size}: {what}"
    if "grouped" in {each.variant.program for each in interpreter.launches}:
        assert {each.variant.constants[7] for each in interpreter.launches} == {False, True}


@pytest.mark.parametrize("op", ["dynamic_quant_fp8", "silu_and_mul_dynamic_quant_fp8"])
def test_one_scale_for_a_tensor(op: str, interpreter: Interpreter) -> None:
    """In two launches, the largest in any row and any block; without tokens it is the least, without a launch."""
    impl, native = declared.FREE[op], getattr(ops, op).impls["native"].impl_fn
    for size in (1, 1000, 20000):
        for row in (0, 4):
            args = getattr(ops, op).generate_inputs(
                num_tokens=5, hidden_size=size, dtype=torch.bfloat16, per_token=False
            )
            args[0][row, -1] = 1000.0
            assert wrong(op, impl.impl_fn(*args), native(*args)) is None, (size, row)
    assert [each.variant.program for each in interpreter.launches] == ["peak", "scaled"] * 6
    args = (torch.ones(0, 64), False, None, torch.float8_e5m2)
    assert wrong(op, impl.impl_fn(*args), native(*args)) is None
    assert len(interpreter.launches) == 12
    assert not declared.FIXED[op].supports_args(*args)


def heads(dtype: str, *, neox: bool = NEOX, size: int = 16, turned: int = 16, tokens: int = 5) -> tuple[Any, ...]:
    """Return a call of fused_qk_norm_rope of 6 and 2 heads."""
    kind = getattr(torch, dtype)
    query, key = torch.randn(tokens, 6 * size).to(kind), torch.randn(tokens, 2 * size).to(kind)
    weights = (torch.randn(size).to(kind), torch.randn(size).to(kind))
    cache = torch.randn(9, turned).to(kind)
    return (torch.arange(tokens) % 9, query, key, *weights, EPSILON, size, turned, cache, neox)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_of_any_size_are_normalised_and_turned(dtype: str, interpreter: Interpreter) -> None:
    """In both styles, in whole and in part, in place, with one position for all, without weights and with others."""
    elements = differing = 0
    for size, turned in ((16, 16), (80, 20), (80, 80), (128, 64)):
        for neox in (True, False):
            args = heads(dtype, neox=neox, size=size, turned=turned)
            if not neox and turned == 20:
                assert not declared.FREE["fused_qk_norm_rope"].supports_args(*args)
                continue
            others = (
                args,
                (*args[:3], None, args[4].float(), *args[5:]),
                (args[0][3:4], args[1], args[2][:3], *args[3:]),
            )
            for given in others:
                wanted = ops.fused_qk_norm_rope.impls["native"].impl_fn(*copies(given))
                donated = copies(given)
                results = declared.FREE["fused_qk_norm_rope"].impl_fn(*donated)
                assert results[0] is donated[1]
                assert results[1] is donated[2]
                for one, other in zip(results, wanted, strict=True):
                    found = compare(one, other, **ops.fused_qk_norm_rope.get_tolerance(one.dtype))
                    assert found.beyond == found.special == found.zero_signs == 0, f"{size}, {turned}, {neox}: {found}"
                    elements, differing = elements + found.elements, differing + found.differing
    # Another order of a sum moves all of a head, and turning makes of a unit several where it cancels.
    assert differing <= elements * {"float32": 1.0, "bfloat16": 1e-4, "float16": 3e-4}[dtype], (
        f"{differing} of {elements}"
    )
    assert {each.variant.program for each in interpreter.launches} == {"qk_norm_rope"}


def test_a_head_outside_the_cache_is_nan() -> None:
    """As in the rotation alone: nothing is read there, nor passed off as a result."""
    args = heads("float32")
    got, _ = declared.FREE["fused_qk_norm_rope"].func_impl_fn(torch.tensor([0, -1, 9, 1, 2]), *args[1:])
    assert torch.isfinite(got[[0, 3, 4]]).all()
    assert torch.isnan(got[1:3]).all()


def test_a_donated_residual_is_written_unless_something_is_read_from_it() -> None:
    """The sums are where the residual was; a weight or a scale in it, or x itself, leaves it alone."""
    impl, native = declared.FREE["fused_add_rms_norm_dynamic_quant_fp8"], ops.fused_add_rms_norm_dynamic_quant_fp8
    x, residual, weight = torch.randn(70, 64), torch.randn(70, 64), torch.randn(64)
    for others in ((x, residual, weight), (x, residual, residual[3]), (residual, residual, weight)):
        args = (*others, EPSILON, True, residual[0, :1].abs() + 1.0)
        wanted = native.impls["native"].impl_fn(*copies(args))
        given = (*others[:2], *args[2:])
        before = residual.clone()
        results = impl.impl_fn(*given)
        assert (results[2] is residual) == (others[2] is weight and others[0] is x)
        assert wrong("fused_add_rms_norm_dynamic_quant_fp8", results, wanted) is None
        residual.copy_(before)


def test_scales_lie_where_native_has_them() -> None:
    """Column-major with one to four dimensions, one token among them."""
    for sizes in ((64,), (1, 64), (3, 64), (2, 3, 64), (2, 1, 3, 64), (0, 64)):
        args = (torch.randn(sizes), 16, True, False)
        got, wanted = (
            run(*args)
            for run in (
                declared.FREE["dynamic_group_quant_fp8"].impl_fn,
                ops.dynamic_group_quant_fp8.impls["native"].impl_fn,
            )
        )
        assert wrong("dynamic_group_quant_fp8", got, wanted) is None, sizes


def test_no_tokens_quantise_nothing(interpreter: Interpreter) -> None:
    """Zero tokens are answered without a launch."""
    for op, impl in declared.FREE.items():
        args = getattr(ops, op).generate_inputs(num_tokens=0, hidden_size=64)
        wanted = getattr(ops, op).impls["native"].impl_fn(*args)
        for got, native in zip(tensors(impl.func_impl_fn(*args)), tensors(wanted), strict=True):
            assert (got.shape, got.dtype) == (native.shape, native.dtype)
    assert interpreter.launches == []


@pytest.mark.parametrize("op", declared.FIXED)
def test_a_quantised_row_has_the_same_bits_alone_or_in_any_batch(op: str) -> None:
    """At any address, and whatever its neighbours are."""
    args = getattr(ops, op).generate_inputs(num_tokens=23, hidden_size=1008, dtype=torch.bfloat16)
    impl = declared.FIXED[op]
    whole = tensors(impl.func_impl_fn(*args))
    for first, last in ((0, 1), (4, 5), (16, 23)):
        part = []
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.dim() > 0 and arg.shape[0] == 23:
                rows = arg[first:last]
                arg = torch.cat((rows.new_zeros(1), rows.flatten()))[1:].view(rows.shape)  # noqa: PLW2901 - at an odd address
            part.append(arg)
        assert all(
            same(one, other[first:last]) for one, other in zip(tensors(impl.func_impl_fn(*part)), whole, strict=True)
        ), (first, last)


def test_the_order_of_sums_before_quantisation_is_no_launchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number of rows, warps and every block gives the same bits; heads, too."""
    x = torch.randn(3, 1000)
    impl = declared.FIXED["rms_norm_dynamic_quant_fp8"]
    assert not order_depends(lambda: impl.impl_fn(x, None, EPSILON)[1], 1000, monkeypatch)
    args = heads("float32", size=128, turned=128)
    found = []
    for shape in (configuration.Shape(2, 64, 1), configuration.Shape(8, 64, 4), configuration.Shape(4, 128, 8)):
        monkeypatch.setattr(configuration, "choose_heads", lambda *_, shape=shape: shape)
        found.append(declared.FIXED["fused_qk_norm_rope"].func_impl_fn(*args)[0])
    assert all(same(found[0], each) for each in found[1:])


def test_offsets_of_what_is_quantised_have_64_bits(native: Callable[..., Any]) -> None:
    """Rows 2**32 bytes apart, in memory that is reserved and never touched between them."""
    distance, size = 2**31 + 64, 64
    memory = mmap.mmap(-1, 2 * (2 * distance + 64), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    whole = torch.frombuffer(memory, dtype=torch.bfloat16)
    x = whole.as_strided((3, size), (distance, 1))
    x.copy_(torch.randn(3, size))
    near = x.contiguous()
    calls = {
        "static_quant_fp8": (torch.ones(1),),
        "dynamic_quant_fp8": (),
        "silu_and_mul_group_quant_fp8": (16,),
        "rms_norm_dynamic_quant_fp8": (None, EPSILON),
    }
    for op, others in calls.items():
        assert wrong(op, declared.FREE[op].impl_fn(x, *others), native(op, near, *others)) is None
    del x, whole
