"""What gated activations mean: the first half of a row through an activation, times the second half."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vllm_ir.declare import register_op
from vllm_ir.errors import WrongArgument
from vllm_ir.ops.checks import check_floating, check_packed

_APPROXIMATIONS = ("none", "tanh")


@register_op
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up one after the other.

    silu(v) = v * sigmoid(v), rounded to x's dtype before the multiply, as in vLLM's native forward.

    Args:
        x: [..., 2 * size] of any floating-point dtype and strides; zero tokens are legal.

    Returns:
        a new contiguous tensor [..., size] of x's dtype.

    Raises:
        WrongArgument: the dtype is none of floating point, or the last size is odd.
    """
    check_floating("silu_and_mul", "x", x)
    check_packed("silu_and_mul", x)
    size = x.shape[-1] // 2
    return (functional.silu(x[..., :size]) * x[..., size:]).contiguous()


@register_op
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up of rows that hold gate and up one after the other.

    gelu(v) = v * Phi(v) with the normal distribution function Phi, or its tanh approximation (Hendrycks and Gimpel,
    arXiv:1606.08415), rounded to x's dtype before the multiply, as in vLLM's native forward.

    Args:
        x: [..., 2 * size] of any floating-point dtype and strides; zero tokens are legal.
        approximate: "none" or "tanh".

    Returns:
        a new contiguous tensor [..., size] of x's dtype.

    Raises:
        WrongArgument: the dtype is none of floating point, the last size is odd, or the approximation is unknown.
    """
    check_floating("gelu_and_mul", "x", x)
    check_packed("gelu_and_mul", x)
    if approximate not in _APPROXIMATIONS:
        raise WrongArgument(
            op="gelu_and_mul", parameter="approximate", got=repr(approximate), wanted="'none' or 'tanh'"
        )
    size = x.shape[-1] // 2
    return (functional.gelu(x[..., :size], approximate=approximate) * x[..., size:]).contiguous()


@silu_and_mul.register_input_generator
def silu_and_mul_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> tuple[Tensor]:
    """Return x [num_tokens, 2 * hidden_size], normally distributed."""
    return (torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device),)


@gelu_and_mul.register_input_generator
def gelu_and_mul_inputs(
    num_tokens: int,
    hidden_size: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    approximate: str = "none",
) -> tuple[Tensor, str]:
    """Return x [num_tokens, 2 * hidden_size], normally distributed, and the approximation."""
    return torch.randn(num_tokens, 2 * hidden_size, dtype=dtype, device=device), approximate


for _op in (silu_and_mul, gelu_and_mul):
    # exp, erf and tanh of two libraries differ by a few units in the last place.
    _op.override_tolerance(torch.float32, atol=1e-6, rtol=2e-6)
    _op.override_tolerance(torch.float16, atol=1e-6, rtol=2e-3)
del _op
