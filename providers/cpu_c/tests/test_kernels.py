"""The kernels against native, bit for bit: native is the meaning, rounding included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops
from vllm_ir_provider_cpu_c import kernels, quant_kernels
from vllm_ir_provider_cpu_c.predicates import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Native = Callable[..., Any]
    Same = Callable[[Any, Any], None]

EPSILON = 1e-6
NEOX = True
SIZES = (1, 2, 7, 8, 31, 33, 64, 576, 1000, 4096)
ACTIVATIONS = {"fused_add_rms_norm": (0, 1), "rotary_embedding": (1, 2), "fused_qk_norm_rope": (1, 2)}
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


@pytest.fixture
def check(native: Native, same_bits: Same) -> Callable[..., None]:
    """Give a comparison with native."""

    def run(op: str, *args: Any) -> None:
        """Require native's bits from an implementation, and that it accepts and, unless it may, writes no input."""
        _check(native, same_bits, op, *args)

    return run


def _check(native: Native, same_bits: Same, op: str, *args: Any) -> None:
    """Compare one call with native."""
    impl = getattr(kernels, op)
    assert impl.predicate(*args) is True
    expected = native(op, *args)
    own = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    same_bits(impl.impl_fn(*own), expected)
    if impl.functional is not None:
        same_bits(impl.functional(*args), expected)
    activations = ACTIVATIONS.get(op, ())
    before = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    views = [arg.clone() if i in activations and arg.is_contiguous() else arg for i, arg in enumerate(args)]
    same_bits(impl.impl_fn(*views), expected)
    for i, (arg, kept) in enumerate(zip(args, before, strict=True)):
        if isinstance(arg, torch.Tensor):
            assert torch.equal(arg.nan_to_num(), kept.nan_to_num()), f"argument {i} was written"


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_norms_equal_native(dtype: torch.dtype, size: int, check: Callable[..., None]) -> None:
    """Both norms, with every kind of weight and both kinds of variance, on every instruction set."""
    x, residual = torch.randn(5, size).to(dtype), torch.randn(5, size).to(dtype)
    for weight in (None, torch.randn(size).to(dtype), torch.randn(size)):
        for variance_size in (None, max(1, size // 2)):
            check("rms_norm", x, weight, EPSILON, variance_size)
            check("fused_add_rms_norm", x, residual, weight, EPSILON, variance_size)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16384, 100_000])
def test_long_rows_equal_native(dtype: torch.dtype, size: int, check: Callable[..., None]) -> None:
    """The order of the sum is native's over all of its levels."""
    x, weight = torch.randn(2, size).to(dtype), torch.randn(size).to(dtype)
    check("rms_norm", x, weight, EPSILON, None)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_gates_equal_native(native: Native, dtype: torch.dtype, size: int, check: Callable[..., None]) -> None:
    """All three activations; float32 silu is within one unit where native leaves its vectors for the C library."""
    x = 2 * torch.randn(5, 2 * size).to(dtype)
    if dtype == torch.float32:
        tolerance = ops.silu_and_mul.get_tolerance(dtype)
        torch.testing.assert_close(kernels.silu_and_mul.impl_fn(x), native("silu_and_mul", x), **tolerance)
    else:
        check("silu_and_mul", x)
    check("gelu_and_mul", x, "none")
    check("gelu_and_mul", x, "tanh")


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_and_mul"])
def test_gates_equal_native_for_every_number(native: Native, op: str, dtype: torch.dtype, same_bits: Same) -> None:
    """Each of the 65536 bit patterns goes through the activation as in native."""
    gates = torch.arange(65536).to(torch.int32).to(torch.int16).view(dtype).view(64, 1024)
    x = torch.cat((gates, torch.ones_like(gates)), dim=-1)
    same_bits(getattr(kernels, op).impl_fn(x), native(op, x))
    if op == "gelu_and_mul":
        same_bits(kernels.gelu_and_mul.impl_fn(x, "tanh"), native(op, x, "tanh"))


def test_native_itself_depends_on_the_batch_in_exact_gelu(native: Native, same_bits: Same) -> None:
    """One contiguous row takes another erf in torch than two do; a batch-invariant kernel can equal only one."""
    x = torch.linspace(-6, 0, 1024).bfloat16().repeat(2, 2)
    x[:, 1024:] = 1
    if torch.equal(native("gelu_and_mul", x[:1], "none"), native("gelu_and_mul", x, "none")[:1]):
        pytest.skip("torch takes one erf for both here")
    same_bits(kernels.gelu_and_mul.impl_fn(x[:1]), native("gelu_and_mul", x, "none")[:1])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(64, 64), (64, 32), (128, 128), (80, 20), (16, 6), (2, 2)])
def test_rotary_equals_native(
    neox: bool, dtype: torch.dtype, head_size: int, rotary_dim: int, check: Callable[..., None]
) -> None:
    """Whole and partial rotation, both styles, caches of both dtypes, heads packed or apart, int32 and int64."""
    heads = torch.randn(11, 5, head_size).to(dtype)
    shapes = (
        (heads[:, :3].flatten(1), heads[:, 3:].flatten(1)),
        (heads[:, :3], heads[:, 3:]),
        (heads.flatten(1)[:, : 3 * head_size], heads.flatten(1)[:, 3 * head_size :]),
    )
    for cache_dtype in {dtype, torch.float32}:
        cache = torch.randn(50, rotary_dim).to(cache_dtype)
        for query, key in shapes:
            for kind in (torch.int64, torch.int32):
                positions = torch.randint(0, 50, (11,)).to(kind)
                check("rotary_embedding", positions, query, key, head_size, rotary_dim, cache, neox)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_size", "rotary_dim"), [(64, 64), (128, 128), (80, 20), (16, 6), (2, 2)])
def test_normalised_rotation_equals_native(
    neox: bool, dtype: torch.dtype, head_size: int, rotary_dim: int, check: Callable[..., None]
) -> None:
    """Heads packed or apart, weights of both dtypes and none, caches of both dtypes, special values among the heads."""
    heads = torch.randn(11, 5, head_size).to(dtype)
    heads[0, 0, 0], heads[1, 1, -1], heads[2, 3] = float("nan"), float("inf"), -0.0
    shapes = (
        (heads[:, :3].flatten(1), heads[:, 3:].flatten(1)),
        (heads[:, :3], heads[:, 3:]),
        (heads.flatten(1)[:, : 3 * head_size], heads.flatten(1)[:, 3 * head_size :]),
    )
    weights = (None, torch.randn(head_size).to(dtype), torch.randn(head_size))
    for cache_dtype in {dtype, torch.float32}:
        cache = torch.randn(50, rotary_dim).to(cache_dtype)
        for i, (query, key) in enumerate(shapes):
            positions = torch.randint(0, 50, (11,)).to(torch.int32 if i else torch.int64)
            weight, other = weights[i], weights[i - 1]
            rest = (head_size, rotary_dim, cache, neox)
            check("fused_qk_norm_rope", positions, query, key, weight, other, EPSILON, *rest)


def test_a_normalised_rotation_writes_what_was_donated_and_nothing_on_an_error() -> None:
    """Query and key are the results; with a position outside the cache they are as they were."""
    query, key, cache = torch.randn(3, 32), torch.randn(3, 16), torch.randn(50, 16)
    rest = (None, None, EPSILON, 16, 16, cache, NEOX)
    kept = query.clone()
    with pytest.raises(IndexError, match="outside cos_sin_cache"):
        kernels.fused_qk_norm_rope.impl_fn(torch.tensor([0, 1, 50]), query, key, *rest)
    assert torch.equal(query, kept)
    got = kernels.fused_qk_norm_rope.impl_fn(torch.tensor([[0], [1], [2]]).flatten(), query, key, *rest)
    assert got[0] is query
    assert got[1] is key


def test_rotary_takes_tokens_in_several_dimensions(check: Callable[..., None]) -> None:
    """Positions [batch, tokens], transposed ones too, and query [batch, tokens, heads, head_size]."""
    query, key, cache = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 16), torch.randn(9, 16)
    for positions in (torch.randint(0, 9, (2, 3)), torch.randint(0, 9, (3, 2)).T):
        check("rotary_embedding", positions, query, key, 16, 16, cache, NEOX)


@pytest.mark.parametrize("position", [-1, 50])
def test_a_position_outside_the_cache_is_an_error_and_nothing_is_written(position: int) -> None:
    """As in native; and a donated tensor is as it was."""
    query, cache = torch.randn(3, 32), torch.randn(50, 16)
    before = query.clone()
    with pytest.raises(IndexError, match="outside cos_sin_cache"):
        kernels.rotary_embedding.impl_fn(torch.tensor([0, 1, position]), query, query.clone(), 16, 16, cache, NEOX)
    assert torch.equal(query, before)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_anywhere(name: str, dtype: torch.dtype, check: Callable[..., None]) -> None:
    """Packed, transposed, offset, expanded, one to four dimensions, no rows: no copy, and contiguous results."""
    weight = torch.randn(64).to(dtype)
    x, residual = view(name, 6, 64, dtype), view(name, 6, 64, dtype)
    check("rms_norm", x, weight, EPSILON, None)
    check("fused_add_rms_norm", x, residual, weight, EPSILON, None)
    if x.dim() > 1:
        # One contiguous row takes another erf in native.
        check("gelu_and_mul", x, "none")
    if dtype != torch.float32:
        check("silu_and_mul", x)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [64, 100])
def test_special_values_are_as_native(
    native: Native,
    dtype: torch.dtype,
    size: int,
    check: Callable[..., None],
    special: Callable[[torch.dtype, int], Tensor],
) -> None:
    """NaN, infinities, subnormals, signed zeros, ties and extremes."""
    x = special(dtype, size)
    weight = torch.randn(size).to(dtype)
    for residual in (x.flip(0), torch.zeros_like(x), -x):
        check("fused_add_rms_norm", x, residual, weight, EPSILON, None)
    for one in (None, weight, weight.float()):
        check("rms_norm", x, one, EPSILON, None)
        check("rms_norm", x, one, 0.0, None)
    check("gelu_and_mul", x, "none")
    check("gelu_and_mul", x, "tanh")
    torch.testing.assert_close(
        kernels.silu_and_mul.impl_fn(x), native("silu_and_mul", x), equal_nan=True, rtol=2e-6, atol=0
    )


def test_a_donated_pair_is_written_and_nothing_else() -> None:
    """In place means x and x_residual are the results; the weight is not touched."""
    x, residual, weight = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64)
    kept = weight.clone()
    out, total = kernels.fused_add_rms_norm.impl_fn(x, residual, weight, EPSILON)
    assert out is x
    assert total is residual
    assert torch.equal(weight, kept)


def test_one_tensor_donated_twice_is_left_alone(native: Native, same_bits: Same) -> None:
    """Both results in one memory would destroy each other."""
    x, weight = torch.randn(4, 64), torch.randn(64)
    kept = x.clone()
    same_bits(
        kernels.fused_add_rms_norm.impl_fn(x, x, weight, EPSILON), native("fused_add_rms_norm", x, x, weight, EPSILON)
    )
    assert torch.equal(x, kept)


def test_a_donated_view_of_a_packed_row_is_left_alone() -> None:
    """Results are contiguous, so a view that is not gets memory of its own, and its neighbours stay."""
    packed = torch.randn(4, 192)
    kept = packed.clone()
    out, _ = kernels.fused_add_rms_norm.impl_fn(packed[:, :64], packed[:, 64:128], None, EPSILON)
    assert out.is_contiguous()
    assert torch.equal(packed, kept)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_alone_and_in_any_batch(dtype: torch.dtype) -> None:
    """Batch invariance: over batch sizes, positions, offsets in memory and numbers of threads."""
    row, residual, weight = (torch.randn(576).to(dtype) for _ in range(3))
    alone = kernels.rms_norm.impl_fn(row, weight, EPSILON)
    fused = kernels.fused_add_rms_norm.impl_fn(row[None].clone(), residual[None].clone(), weight, EPSILON)
    gate = kernels.silu_and_mul.impl_fn(row)
    gelu = kernels.gelu_and_mul.impl_fn(row)
    for batch in (2, 3, 17, 200):
        for at in (0, batch // 2, batch - 1):
            x, r = torch.randn(batch, 576).to(dtype), torch.randn(batch, 576).to(dtype)
            x[at], r[at] = row, residual
            assert torch.equal(kernels.rms_norm.impl_fn(x, weight, EPSILON)[at], alone)
            assert torch.equal(kernels.silu_and_mul.impl_fn(x)[at], gate)
            assert torch.equal(kernels.gelu_and_mul.impl_fn(x)[at], gelu)
            out, total = kernels.fused_add_rms_norm.impl_fn(x, r, weight, EPSILON)
            assert torch.equal(out[at], fused[0][0])
            assert torch.equal(total[at], fused[1][0])


@pytest.mark.parametrize("flag", [True, False, 1, 0])
def test_a_flag_is_set_as_python_tells_it(flag: Any, native: Native, same_bits: Same) -> None:
    """Whoever writes 1 for True gets what native gives for it, in a rotation and in the scales of groups."""
    call = torch.arange(3), torch.randn(3, 32), torch.randn(3, 16), 16, 16, torch.randn(8, 16), flag
    turn, fused = kernels.rotary_embedding.functional, kernels.fused_qk_norm_rope.functional
    assert turn is not None
    assert fused is not None
    same_bits(turn(*call), native("rotary_embedding", *call))
    heads = (*call[:3], None, None, EPSILON, *call[3:])
    same_bits(fused(*heads), native("fused_qk_norm_rope", *heads))
    grouped = torch.randn(3, 64), 16, flag, flag
    same_bits(quant_kernels.dynamic_group_quant_fp8.impl_fn(*grouped), native("dynamic_group_quant_fp8", *grouped))
