"""The kernel against native, bit for bit: native is the meaning, rounding included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from vllm_ir import Unsupported, ops
from vllm_ir_first_provider import kernels

EPSILON = 1e-6
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def native(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return what the op's own definition gives."""
    expected: Tensor = ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
    return expected


def agree(x: Tensor, weight: Tensor | None) -> None:
    """Require the same bits, dtype, shape and a contiguous result, and that no input was written."""
    before = x.clone()
    assert kernels.accepts(x, weight, EPSILON) is True
    got, expected = kernels.rms_norm.impl_fn(x, weight, EPSILON), native(x, weight)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.is_contiguous()
    assert torch.equal(got, expected)
    assert torch.equal(x, before)


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Start every test from one seed."""
    torch.manual_seed(7)


@pytest.mark.parametrize("weight_dtype", [*DTYPES, None])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 7, 576, 4096])
def test_equals_native(dtype: torch.dtype, weight_dtype: torch.dtype | None, hidden: int) -> None:
    """Every dtype of x with every dtype of weight, and with none, gives native's bits."""
    x = torch.randn(33, hidden).to(dtype)
    agree(x, None if weight_dtype is None else torch.randn(hidden).to(weight_dtype))


@pytest.mark.parametrize("shape", [(64,), (5, 64), (2, 3, 64), (2, 1, 3, 64), (0, 64), (2, 0, 64)])
def test_any_number_of_dimensions_and_no_tokens(shape: tuple[int, ...]) -> None:
    """One to four dimensions and zero tokens are ordinary inputs."""
    agree(torch.randn(shape).bfloat16(), torch.randn(64).bfloat16())


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_inputs_give_contiguous_outputs(dtype: torch.dtype) -> None:
    """A slice of a packed row, every second element, a transposed input and a broadcast row are read right."""
    packed = torch.randn(6, 3, 192).to(dtype)
    weight = torch.randn(64).to(dtype)
    agree(packed[..., 64:128], weight)
    agree(packed[..., ::3], weight)
    agree(torch.randn(64, 5).to(dtype).T, weight)
    agree(torch.randn(1, 64).to(dtype).expand(4, 64), weight)


def test_special_values_are_as_native() -> None:
    """NaN, infinity and subnormal rows come out as native has them."""
    rows = torch.randn(4, 64)
    rows[0, 3], rows[1, 5], rows[2] = float("nan"), float("inf"), 1e-40
    got = kernels.rms_norm.impl_fn(rows, None, EPSILON)
    assert torch.equal(got.nan_to_num(nan=9.0), native(rows, None).nan_to_num(nan=9.0))


def test_rounding_twice_is_what_matters() -> None:
    """Normalising in bfloat16 at once differs from native: this is why the kernel goes over float32."""
    x, weight = torch.randn(64, 576).bfloat16(), torch.randn(576).bfloat16()
    short = torch.nn.functional.rms_norm(x, (576,), weight, EPSILON)
    assert (short != native(x, weight)).float().mean() > 0.05


def test_a_variance_over_part_of_the_row_is_refused() -> None:
    """What the kernel does not do it refuses, with a sentence that says what it got."""
    verdict = kernels.accepts(torch.randn(2, 64), None, EPSILON, 32)
    assert isinstance(verdict, Unsupported)
    assert verdict.reason == "takes the variance of the whole row, got variance_size=32"


def test_another_dtype_is_refused() -> None:
    """A dtype that the manifest does not list is refused by the predicate too."""
    verdict = kernels.accepts(torch.randn(2, 64).double(), None, EPSILON)
    assert isinstance(verdict, Unsupported)
    assert "float64" in verdict.reason
