"""The implementations: each is one torch op, whose body calls AITER."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from torch import Tensor  # noqa: TC002 - registration reads the annotations
from vllm_ir import implements

from vllm_ir_provider_aiter import availability, predicates, torch_ops

if TYPE_CHECKING:
    from vllm_ir import IrOpImpl

PROVIDER: Final = "aiter"


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return x over the root mean square of its rows, times the weight, as a new contiguous tensor.

    It rounds where native rounds: the normalised value to nearest before the multiply, and the product.

    Args:
        x: [..., hidden_size] of bfloat16 or float16, up to 8192 a row, evenly spaced rows.
        weight: [hidden_size] of x's dtype.
        epsilon: added to the mean of squares.
        variance_size: None.
    """
    result: Tensor = torch_ops.rms_norm(x, weight, epsilon, variance_size)
    return result


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the normalised sum of x and a residual, and the sum, as new contiguous tensors.

    Unlike native it normalises the sum after rounding it, so that the result differs.

    Args:
        x: [..., hidden_size] of bfloat16 or float16, up to 8192 a row, evenly spaced rows.
        x_residual: of x's shape and dtype.
        weight: [hidden_size] of x's dtype.
        epsilon: added to the mean of squares.
        variance_size: None.
    """
    results: tuple[Tensor, Tensor] = torch_ops.fused_add_rms_norm(x, x_residual, weight, epsilon, variance_size)
    return results


def silu_and_mul(x: Tensor) -> Tensor:
    """Return silu(gate) * up of rows that hold gate and up, as a new contiguous tensor.

    Unlike native it does not round the activation before the multiply, so that the result differs.

    Args:
        x: [..., 2 * size] of bfloat16 or float16, contiguous.
    """
    result: Tensor = torch_ops.silu_and_mul(x)
    return result


def functional_rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head turned by its token's angles, as new contiguous tensors; no input is written."""
    results: tuple[Tensor, Tensor] = torch_ops.rotary_embedding(
        positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style
    )
    return results


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    head_size: int,
    rotary_dim: int,
    cos_sin_cache: Tensor,
    is_neox_style: bool,
) -> tuple[Tensor, Tensor]:
    """Return query and key, each head turned by its token's angles, in their own memory where it is contiguous.

    It rounds where native rounds: each product, and each sum.

    Args:
        positions: int32 or int64, one a token.
        query: [..., heads * head_size] or [..., heads, head_size] of bfloat16 or float16.
        key: like query; the number of heads may be another.
        head_size: elements of a head.
        rotary_dim: how many leading elements of a head are turned.
        cos_sin_cache: [max_position, rotary_dim] of any floating-point dtype.
        is_neox_style: pairs are element i and i + rotary_dim / 2; otherwise 2i and 2i + 1.

    Raises:
        WrongTokens: query or key are not of as many tokens as there are positions.
    """
    results: tuple[Tensor, Tensor] = torch_ops.rotary_embedding.donating(
        positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style
    )
    return results


def implementations() -> list[IrOpImpl]:
    """Return the declarations, each with the verdict on the AITER that is installed now."""
    return [
        implements(
            "rms_norm",
            provider=PROVIDER,
            supported=availability.supported("rms_norm"),
            supports_args=predicates.rms_norm,
        )(rms_norm),
        implements(
            "fused_add_rms_norm",
            provider=PROVIDER,
            supported=availability.supported("fused_add_rms_norm"),
            supports_args=predicates.fused_add_rms_norm,
        )(fused_add_rms_norm),
        implements(
            "silu_and_mul",
            provider=PROVIDER,
            supported=availability.supported("silu_and_mul"),
            supports_args=predicates.silu_and_mul,
        )(silu_and_mul),
        implements(
            "rotary_embedding",
            provider=PROVIDER,
            supported=availability.supported("rotary_embedding"),
            supports_args=predicates.rotary_embedding,
            inplace=True,
            functional=functional_rotary_embedding,
        )(rotary_embedding),
    ]
