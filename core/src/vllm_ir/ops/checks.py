"""What natives ask of their arguments before they mean anything, with the op and the parameter in the answer.

Only dtypes and trailing sizes are looked at, so that no check depends on the number of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import WrongArgument

if TYPE_CHECKING:
    from torch import Tensor


def check_floating(op: str, parameter: str, x: Tensor) -> None:
    """Raise unless a tensor has at least one dimension and a floating-point dtype.

    Raises:
        WrongArgument: it has not.
    """
    if not x.is_floating_point():
        raise WrongArgument(op=op, parameter=parameter, got=f"of dtype {x.dtype}", wanted="a floating-point dtype")
    if x.dim() == 0:
        raise WrongArgument(op=op, parameter=parameter, got="a scalar tensor", wanted="at least one dimension")


def check_weight(op: str, weight: Tensor | None, size: int) -> None:
    """Raise unless a weight is absent or one value per element of a row.

    Raises:
        WrongArgument: its dtype or shape is another.
    """
    if weight is None:
        return
    if not weight.is_floating_point():
        raise WrongArgument(op=op, parameter="weight", got=f"of dtype {weight.dtype}", wanted="a floating-point dtype")
    if weight.dim() != 1 or weight.shape[0] != size:
        raise WrongArgument(
            op=op,
            parameter="weight",
            got=f"of shape {tuple(weight.shape)}",
            wanted=f"shape ({size},), the size of a row",
        )


def check_variance_size(op: str, variance_size: int | None, size: int) -> None:
    """Raise unless the variance is of at least one and at most all elements of a row.

    Raises:
        WrongArgument: it is of another number.
    """
    if variance_size is not None and not 0 < variance_size <= size:
        raise WrongArgument(
            op=op,
            parameter="variance_size",
            got=str(variance_size),
            wanted=f"a number from 1 to {size}, the size of a row",
        )


def check_packed(op: str, x: Tensor) -> None:
    """Raise unless the last dimension holds two halves.

    Raises:
        WrongArgument: its size is odd.
    """
    if x.shape[-1] % 2:
        raise WrongArgument(
            op=op, parameter="x", got=f"of last size {x.shape[-1]}", wanted="an even last size: gate, then up"
        )


def check_same(op: str, x: Tensor, x_residual: Tensor) -> None:
    """Raise unless a residual has the dtype and the row size of what is added to it.

    Raises:
        WrongArgument: one of them differs.
    """
    if x_residual.dtype != x.dtype:
        raise WrongArgument(
            op=op, parameter="x_residual", got=f"of dtype {x_residual.dtype}", wanted=f"{x.dtype}, the dtype of x"
        )
    if x_residual.dim() != x.dim() or x_residual.shape[-1] != x.shape[-1]:
        raise WrongArgument(
            op=op,
            parameter="x_residual",
            got=f"of shape {tuple(x_residual.shape)}",
            wanted=f"{tuple(x.shape)}, the shape of x",
        )
