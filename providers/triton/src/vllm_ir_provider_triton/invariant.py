"""The implementations of `triton_batch_invariant`: a row has the same bits alone or in any batch, wherever it lies.

The kernels are those of `triton`, launched by the size of a row alone, and the sum over a row is made of pairs in one
order, which no launch changes. The gates and the rotation have no sum: an element of their results is made of two
elements, and two angles, by the same operations wherever it stands, so no launch changes it.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import implements

from vllm_ir_provider_triton import calls, kernels, predicates, torch_ops
from vllm_ir_provider_triton.calls import DONATED, FIXED, KEPT
from vllm_ir_provider_triton.kernels import plain

PROVIDER: Final = "triton_batch_invariant"


@implements("rms_norm", provider=PROVIDER, supports_args=predicates.rms_norm, batch_invariant=True)
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, as a new contiguous tensor.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if plain(x):
        return calls.rms_norm(x, weight, epsilon, variance_size, FIXED)
    traced: Tensor = torch_ops.fixed_rms_norm(x, weight, epsilon, variance_size)
    return traced


def functional_fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual, and the sum, as new contiguous tensors; no input is written."""
    if plain(x, x_residual):
        return calls.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, KEPT, FIXED)
    traced: tuple[Tensor, Tensor] = torch_ops.fixed_fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    return traced


@implements(
    "fused_add_rms_norm",
    provider=PROVIDER,
    supports_args=predicates.fused_add_rms_norm,
    inplace=True,
    functional=functional_fused_add_rms_norm,
    batch_invariant=True,
)
def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual in x's memory, and the sum in the residual's.

    What is not contiguous, or shares memory, is left alone, and the results are new contiguous tensors.

    Args:
        x: [..., hidden_size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype or float32, or None.
        epsilon: added to the mean of squares.
        variance_size: how many leading elements of a row the mean is of; all when None.
    """
    if plain(x, x_residual):
        return calls.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size, DONATED, FIXED)
    traced: tuple[Tensor, Tensor] = torch_ops.fixed_fused_add_rms_norm.donating(
        x, x_residual, weight, epsilon, variance_size
    )
    return traced


@implements("silu_and_mul", provider=PROVIDER, supports_args=predicates.silu_and_mul, batch_invariant=True)
def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
    """
    if plain(x):
        return calls.silu_and_mul(x, FIXED)
    traced: Tensor = torch_ops.fixed_silu_and_mul(x)
    return traced


@implements("gelu_and_mul", provider=PROVIDER, supports_args=predicates.gelu_and_mul, batch_invariant=True)
def gelu_and_mul(x: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Args:
        x: [..., 2 * size] of float32, bfloat16 or float16; rows lie anywhere, their elements are adjacent.
        approximate: "none" or "tanh".
    """
    if plain(x):
        return calls.gelu_and_mul(x, approximate, FIXED)
    traced: Tensor = torch_ops.fixed_gelu_and_mul(x, approximate)
    return traced


functional_rotary_embedding: Final = kernels.functional_rotary_embedding

# Its launch goes by the size and number of heads already, so the two providers have it in common.
rotary_embedding: Final = implements(
    "rotary_embedding",
    provider=PROVIDER,
    supports_args=predicates.rotary_embedding,
    inplace=True,
    functional=functional_rotary_embedding,
    batch_invariant=True,
)(kernels.rotary_embedding.impl_fn)
