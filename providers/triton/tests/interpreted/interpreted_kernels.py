"""Every kernel against native, over the inputs of the test kit and some more, in Triton's interpreter made exact."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import pytest
import torch
from comparing import calls_of, complaint, copies, forms, same, tensors
from launches import EPSILON, NEOX, order_depends
from vllm_ir import ops
from vllm_ir_provider_triton import calls, invariant, kernels
from vllm_ir_provider_triton.variants import GELU, GELU_TANH

if TYPE_CHECKING:
    from collections.abc import Callable

    from interpreter import Interpreter

OPS = ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "rotary_embedding")
FIXED = OPS[:3]
DTYPES = ("float32", "bfloat16", "float16")
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python names from 3.13 on


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_kernels_match_native(op: str, dtype: str, interpreter: Interpreter) -> None:
    """Shapes, strides, odd sizes, weights and special values; in place and not; results are where they were donated."""
    declared, impl = getattr(ops, op), getattr(kernels, op)
    taken = 0
    for case, args in calls_of(op, dtype):
        if impl.supports_args(*args) is not True:
            continue
        taken += 1
        wanted = tensors(declared.impls["native"].impl_fn(*args))
        for name, function in forms(impl).items():
            if name == "impl_fn" and impl.inplace and case.layout != "contiguous":
                continue  # which is not written in place
            given = copies(args) if name == "impl_fn" and impl.inplace else args
            before = copies(args)
            results = tensors(function(*given))
            for got, native in zip(results, wanted, strict=True):
                scale = max(1.0, float(native.double().abs().nan_to_num(posinf=0.0).max())) if native.numel() else 1.0
                what = complaint(declared, got, native, tiny=case.fill == "subnormal", scale=scale)
                assert what is None, f"{case}, {name}: {what}"
            if name == "functional" or not impl.inplace:
                kept = [a for a in zip(args, before, strict=True) if isinstance(a[0], torch.Tensor)]
                assert all(same(one, other) for one, other in kept), f"{case}: an input was written"
            elif all(each.is_contiguous() for each in given if isinstance(each, torch.Tensor)):
                activations = [given[i] for i in declared.activation_indices]
                assert all(one is other for one, other in zip(results, activations, strict=True)), case
    assert taken >= 35
    assert {each.variant.program for each in interpreter.launches} == {impl_program(op)}


def impl_program(op: str) -> str:
    """Return the program that an op runs."""
    return {"silu_and_mul": "gate", "rotary_embedding": "rotary"}.get(op, "norm")


@pytest.mark.parametrize("op", FIXED)
def test_the_batch_invariant_kernels_match_native(op: str) -> None:
    """In bfloat16, where there is no excuse; the kernels are the same but for the order of the sum."""
    impl = getattr(invariant, op)
    differing = elements = 0
    for _, args in calls_of(op, "bfloat16"):
        if impl.supports_args(*args) is True:
            wanted = tensors(getattr(ops, op).impls["native"].impl_fn(*args))
            for got, native in zip(tensors(impl.func_impl_fn(*args)), wanted, strict=True):
                elements += got.numel()
                differing += int(((got != native) & ~(got.isnan() & native.isnan())).sum())
    assert elements > 10_000
    assert differing <= elements * 1e-4, f"{differing} of {elements}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_matches_native(dtype: str, approximate: str) -> None:
    """Where its sum does not cancel, for there a CPU has an erf of its own."""
    for case, args in calls_of("gelu_and_mul", dtype):
        if kernels.gelu_and_mul.supports_args(*args) is not True or case.fill == "wide":
            continue
        x = args[0].clone()
        x[..., : x.shape[-1] // 2].clamp_(min=-0.5)
        got, wanted = (
            impl.impl_fn(x, approximate) for impl in (kernels.gelu_and_mul, ops.gelu_and_mul.impls["native"])
        )
        what = complaint(ops.gelu_and_mul, got, wanted, tiny=case.fill == "subnormal")
        assert what is None, f"{case}: {what}"


@pytest.mark.parametrize("activation", [GELU, GELU_TANH])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_as_exact_as_its_cancelling_sum_lets_it_be(dtype: str, activation: int) -> None:
    """Everywhere within two units of float32's 1, times the input, and one unit of the result, of the exact value."""
    kind = getattr(torch, dtype)
    gates = torch.linspace(-8, 8, 2048).to(kind)
    got = calls.gate(torch.cat((gates, torch.ones_like(gates))), activation, calls.FREE).double()
    exact = torch.nn.functional.gelu(gates.double(), approximate="tanh" if activation == GELU_TANH else "none")
    allowed = gates.double().abs() * 2**-22 + exact.abs() * torch.finfo(kind).eps + torch.finfo(kind).tiny
    assert not ((got - exact).abs() > allowed).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_silu_matches_native_for_every_number(dtype: torch.dtype) -> None:
    """Each of the 65536 bit patterns goes through the activation as in native."""
    gates = torch.arange(65536).to(torch.int32).to(torch.int16).view(dtype).view(64, 1024)
    x = torch.cat((gates, torch.ones_like(gates)), dim=-1)
    got, wanted = kernels.silu_and_mul.impl_fn(x), ops.silu_and_mul.impls["native"].impl_fn(x)
    assert complaint(ops.silu_and_mul, got, wanted) is None, complaint(ops.silu_and_mul, got, wanted)


def test_the_exponential_is_exact_where_tritons_own_is_not() -> None:
    """With it silu of far negative numbers is a product: four units of float32, from the smallest results on."""
    gates = torch.linspace(-86, 20, 4096)
    got = kernels.silu_and_mul.impl_fn(torch.cat((gates, torch.ones_like(gates)))).double()
    exact = gates.double() / (1 + (-gates.double()).exp())
    assert not ((got - exact).abs() > 4 * 2**-24 * exact.abs()).any()


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_any_size(dtype: str, fixed: bool, interpreter: Interpreter) -> None:
    """Odd ones, ones that fill a block, and ones too long for it, which are read twice, in place too."""
    kind = getattr(torch, dtype)
    provider = invariant if fixed else kernels
    for size in (1, 63, 1000, 8192, 16385, 20000):
        x, residual, weight = torch.randn(2, size).to(kind), torch.randn(2, size).to(kind), torch.randn(size).to(kind)
        for op, args in (("rms_norm", (x, weight, EPSILON)), ("fused_add_rms_norm", (x, residual, weight, EPSILON))):
            wanted = tensors(getattr(ops, op).impls["native"].impl_fn(*args))
            for got, native in zip(tensors(getattr(provider, op).impl_fn(*copies(args))), wanted, strict=True):
                assert complaint(getattr(ops, op), got, native) is None, (
                    size,
                    complaint(getattr(ops, op), got, native),
                )
    assert {each.variant.constants[3] for each in interpreter.launches} == {False, True}


def test_offsets_have_64_bits(interpreter: Interpreter) -> None:
    """Rows 2**32 bytes apart, in memory that is reserved and never touched between them.

    What is written is contiguous and cannot be so far apart here; `test_compiling.py` reads its products in the code.
    """
    distance, size = 2**31 + 64, 64
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, 2 * (2 * distance + 64), flags=flags)
    whole = torch.frombuffer(memory, dtype=torch.bfloat16)
    x = whole.as_strided((3, size), (distance, 1))
    x.copy_(torch.randn(3, size))
    plain = x.contiguous()
    assert same(kernels.rms_norm.impl_fn(x, None, EPSILON), kernels.rms_norm.impl_fn(plain, None, EPSILON))
    assert same(kernels.silu_and_mul.impl_fn(x), kernels.silu_and_mul.impl_fn(plain))
    cache, positions = torch.randn(4, 16).bfloat16(), torch.tensor([0, 1, 3])
    far = kernels.functional_rotary_embedding(positions, x, plain, 16, 16, cache, NEOX)
    near = kernels.functional_rotary_embedding(positions, plain, plain, 16, 16, cache, NEOX)
    assert all(same(one, other) for one, other in zip(far, near, strict=True))
    assert len(interpreter.launches) == 6
    del x, whole, far


def test_a_position_outside_the_cache_gives_nan_and_reads_nothing() -> None:
    """Native stops the program; a kernel must at least not read what is not there, nor pass it off as a result."""
    query, cache = torch.randn(3, 32), torch.randn(50, 16)
    got, _ = kernels.functional_rotary_embedding(torch.tensor([0, -1, 50]), query, query.clone(), 16, 16, cache, NEOX)
    assert torch.isfinite(got[0]).all()
    assert torch.isnan(got[1:]).all()


@pytest.mark.parametrize("sizes", [((8, 16), (2, 16)), ((3, 5, 16), (3, 2, 16)), ((4, 64), (3, 2, 16))])
def test_one_position_turns_rows_of_any_number(sizes: tuple[tuple[int, ...], ...], native: Callable[..., Any]) -> None:
    """Query and key in a launch each, in place; nothing beyond the shorter one is written."""
    room = [torch.randn(4096).bfloat16() for _ in sizes]
    query, key = (each[: torch.Size(size).numel()].view(size) for each, size in zip(room, sizes, strict=True))
    behind = [each[x.numel() :].clone() for each, x in zip(room, (query, key), strict=True)]
    arguments = (torch.tensor([3]), query, key, 16, 12, torch.randn(4, 12).bfloat16(), NEOX)
    wanted = native("rotary_embedding", *copies(arguments))
    results = kernels.rotary_embedding.impl_fn(*arguments)
    assert results[0] is query
    assert all(same(one, other) for one, other in zip(results, wanted, strict=True))
    assert all(same(each[x.numel() :], kept) for each, x, kept in zip(room, (query, key), behind, strict=True))


def test_a_weight_in_what_is_donated_is_read_as_it_was(native: Callable[..., Any]) -> None:
    """Later programs would read what the first has written over it."""
    x, residual = torch.randn(70, 64), torch.randn(70, 64)
    wanted = native("fused_add_rms_norm", x.clone(), residual.clone(), x[0].clone(), EPSILON)
    results = kernels.fused_add_rms_norm.impl_fn(x, residual, x[0], EPSILON)
    for got, expected in zip(results, wanted, strict=True):
        assert complaint(ops.fused_add_rms_norm, got, expected) is None


def test_no_tokens_start_nothing(interpreter: Interpreter) -> None:
    """Zero tokens are answered without a launch."""
    none = torch.randn(0, 64)
    assert kernels.rms_norm.impl_fn(none, None, EPSILON).shape == (0, 64)
    assert invariant.silu_and_mul.impl_fn(none).shape == (0, 32)
    kernels.fused_add_rms_norm.impl_fn(none, none.clone(), None, EPSILON)
    kernels.rotary_embedding.impl_fn(torch.zeros(0).long(), none, none.clone(), 16, 16, torch.randn(9, 16), NEOX)
    assert interpreter.launches == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_or_in_any_batch(dtype: str) -> None:
    """At any address, and whatever its neighbours are."""
    kind = getattr(torch, dtype)
    for size in (7, 64, 1000, 4096):
        x, residual = torch.randn(37, size).to(kind), torch.randn(37, size).to(kind)
        odd = torch.cat((torch.zeros(1, dtype=kind), x.flatten()))[1:].view(37, size)
        whole = invariant.rms_norm.impl_fn(x, None, EPSILON)
        assert same(invariant.rms_norm.impl_fn(odd, None, EPSILON), whole)
        added = invariant.functional_fused_add_rms_norm(x, residual, None, EPSILON)
        for first, last in ((0, 1), (4, 5), (30, 37)):
            assert same(invariant.rms_norm.impl_fn(x[first:last], None, EPSILON), whole[first:last])
            part = invariant.functional_fused_add_rms_norm(odd[first:last], residual[first:last], None, EPSILON)
            assert all(same(one, other[first:last]) for one, other in zip(part, added, strict=True))


def test_the_order_of_the_sum_is_no_launchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch-invariant norms have the same bits with every number of rows, warps and every block; the others not."""
    x = torch.randn(3, 1000)
    assert not order_depends(lambda: invariant.rms_norm.impl_fn(x, None, EPSILON), 1000, monkeypatch)
    assert order_depends(lambda: kernels.rms_norm.impl_fn(x, None, EPSILON), 1000, monkeypatch)
