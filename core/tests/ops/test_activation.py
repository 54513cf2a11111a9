"""The gated activations round once between the activation and the multiply, on every layout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((64,), (4, 64), (2, 3, 64), (2, 1, 3, 64), (3, 2), (2, 14), (5, 66), (2, 8192), (0, 64), (2, 0, 8))
UNITS = {torch.float32: 2.0**-22, torch.float64: 2.0**-51}


def silu(gate: Tensor) -> Tensor:
    """Return v / (1 + exp(-v))."""
    return gate / (1 + torch.exp(-gate))


def gelu(gate: Tensor) -> Tensor:
    """Return v * Phi(v)."""
    return gate * 0.5 * (1 + torch.erf(gate / math.sqrt(2)))


def gelu_tanh(gate: Tensor) -> Tensor:
    """Return the tanh approximation of v * Phi(v)."""
    return 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))


CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "silu": (silu, ops.silu_and_mul),
    "gelu": (gelu, ops.gelu_and_mul),
    "gelu_tanh": (gelu_tanh, lambda x: ops.gelu_and_mul(x, "tanh")),
}
TORCH_OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": ops.silu_and_mul.torch_op,
    "gelu": ops.gelu_and_mul.torch_op,
    "gelu_tanh": lambda x: ops.gelu_and_mul.torch_op(x, approximate="tanh"),
}


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return gate and up."""
    size = x.shape[-1] // 2
    return x[..., :size], x[..., size:]


def off(result: Tensor, activation: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return how many elements are not the contract's: activation rounded to x's dtype, product rounded to it.

    Far on the negative side 1 + erf and 1 + tanh lose digits by cancellation, so what is left of the wider dtypes is
    an error of a few units of gate times up, and of the narrower ones a step in one of some thousand elements.
    """
    gate, up = halves(x)
    if x.dtype in UNITS:
        error = (result.double() - activation(gate.double()) * up.double()).abs()
        return int((error > UNITS[x.dtype] * (gate * up).double().abs() + torch.finfo(x.dtype).tiny).sum())
    return int((result != activation(gate.float()).to(x.dtype) * up).sum())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding(shape: tuple[int, ...], dtype: torch.dtype, lay: Any, sound: Any) -> None:
    """The contract's two roundings are those of native, in every shape and layout."""
    x = lay(torch.randn(shape).to(dtype))
    kept = x.clone()
    for name, (activation, run) in CASES.items():
        for call in (run, TORCH_OPS[name]):
            result = call(x)
            assert (result.shape, result.dtype) == ((*shape[:-1], shape[-1] // 2), dtype)
            assert off(result, activation, x) <= result.numel() // 1000
            sound(result, [x])
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_product_rounded_once_would_be_seen(dtype: torch.dtype, name: str) -> None:
    """These values tell the contract from an activation that is multiplied before it is rounded."""
    activation, run = CASES[name]
    x = torch.randn(16, 128).to(dtype)
    gate, up = halves(x)
    once = (activation(gate.double()) * up.double()).to(dtype)
    result = run(x)
    assert off(result, activation, x) == 0
    assert int((result != once).sum()) > result.numel() // 100


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_special_values(dtype: torch.dtype, name: str) -> None:
    """NaN stays, infinities and large values go to the limits of the function, and negative zero keeps its sign."""
    _, run = CASES[name]
    top = torch.finfo(dtype).max
    gate = torch.tensor([float("nan"), float("inf"), top, -top, 0.0, -0.0, -60.0], dtype=torch.float64).to(dtype)
    result = run(torch.cat((gate, torch.ones_like(gate))))
    assert result[0].isnan()
    # Torch's vectorised erf gives NaN for an infinity, its scalar one gives one.
    assert result[1] == float("inf") or (name == "gelu" and result[1].isnan())
    assert result[2] >= top
    assert result[3] == 0
    assert result[4] == 0
    assert result[4].signbit().item() is False
    assert result[5].signbit().item() is True
    assert abs(result[6].item()) < 1e-20
    assert run(torch.cat((torch.ones_like(gate), gate)))[0].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_subnormal_rows(dtype: torch.dtype, name: str) -> None:
    """A subnormal gate comes out as half of itself; only torch's vectorised erf takes it for zero."""
    activation, run = CASES[name]
    gate = torch.full((1, 8), torch.finfo(dtype).smallest_normal / 4, dtype=torch.float64).to(dtype)
    result = run(torch.cat((gate, torch.ones_like(gate)), dim=-1))
    flushed = torch.finfo(dtype).smallest_normal if name == "gelu" else 0.0
    torch.testing.assert_close(result.double(), activation(gate.double()), rtol=2e-1, atol=flushed)


def test_the_approximation_matters() -> None:
    """The two forms of gelu differ, and "none" is the default."""
    x = torch.randn(4, 64)
    assert torch.equal(ops.gelu_and_mul(x), ops.gelu_and_mul(x, approximate="none"))
    assert not torch.equal(ops.gelu_and_mul(x), ops.gelu_and_mul(x, "tanh"))


def test_gate_comes_first() -> None:
    """The first half goes through the activation: with a gate of zeros nothing is left."""
    x = torch.cat((torch.zeros(2, 4), torch.ones(2, 4)), dim=-1)
    assert torch.equal(ops.silu_and_mul(x), torch.zeros(2, 4))
    assert ops.silu_and_mul(x.flip(-1)).count_nonzero() == 0


@given(
    rows=st.lists(st.integers(0, 3), max_size=3),
    size=st.integers(0, 40),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(sorted(CASES)),
)
def test_any_shape(rows: list[int], size: int, dtype: torch.dtype, name: str) -> None:
    """Whatever the sizes, also none, the result has half the width and the contract's values."""
    activation, run = CASES[name]
    x = torch.randn(*rows, 2 * size).to(dtype)
    result = run(x)
    assert result.shape == (*rows, size)
    assert off(result, activation, x) <= 1
