"""What natives ask of their arguments before they mean anything, with the op and the parameter in the answer.

Only dtypes and trailing sizes are looked at, so that no check depends on the number of tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.errors import WrongArgument

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_FP8: Final = ("torch.float8_e4m3fn", "torch.float8_e4m3fnuz", "torch.float8_e5m2")


def check_floating(op: str, parameter: str, x: Tensor) -> None:
    """Raise unless a tensor has at least one dimension and a floating-point dtype.

    Raises:
        WrongArgument: it has not.
    """
    if not x.is_floating_point():
        raise WrongArgument(op=op, parameter=parameter, got=f"of dtype {x.dtype}", wanted="a floating-point dtype")
    if x.dim() == 0:
        raise WrongArgument(op=op, parameter=parameter, got="a scalar tensor", wanted="at least one dimension")


def check_weight(op: str, weight: Tensor | None, size: int, parameter: str = "weight") -> None:
    """Raise unless a weight is absent or one value per element of what it is for.

    Raises:
        WrongArgument: its dtype or shape is another.
    """
    if weight is None:
        return
    if not weight.is_floating_point():
        raise WrongArgument(op=op, parameter=parameter, got=f"of dtype {weight.dtype}", wanted="a floating-point dtype")
    if weight.dim() != 1 or weight.shape[0] != size:
        raise WrongArgument(
            op=op,
            parameter=parameter,
            got=f"of shape {tuple(weight.shape)}",
            wanted=f"shape ({size},), the size of a {'row' if parameter == 'weight' else 'head'}",
        )


def check_number(op: str, parameter: str, value: object) -> None:
    """Raise for a truth value where a whole number is meant, since Python takes True for 1.

    Raises:
        WrongArgument: it is one.
    """
    if isinstance(value, bool):
        raise WrongArgument(op=op, parameter=parameter, got=f"bool {value}", wanted="int")


def check_variance_size(op: str, variance_size: int | None, size: int) -> None:
    """Raise unless the variance is of at least one and at most all elements of a row.

    Raises:
        WrongArgument: it is of another number.
    """
    check_number(op, "variance_size", variance_size)
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


def check_fp8(op: str, dtype: torch.dtype) -> None:
    """Raise unless a dtype is one of the 8-bit floating-point dtypes that values are quantised to.

    Raises:
        WrongArgument: it is another.
    """
    if str(dtype) not in _FP8:
        raise WrongArgument(op=op, parameter="dtype", got=str(dtype), wanted=f"{', '.join(_FP8[:-1])} or {_FP8[-1]}")


def check_scale(op: str, parameter: str, scale: Tensor, size: int | None = None) -> None:
    """Raise unless a scale is one float32 value, or one for each element of a row.

    Args:
        op: the op's name.
        parameter: the scale's.
        scale: the scale.
        size: the size of a row, or None where only one value is legal.

    Raises:
        WrongArgument: its dtype or shape is another.
    """
    if str(scale.dtype) != "torch.float32":
        raise WrongArgument(op=op, parameter=parameter, got=f"of dtype {scale.dtype}", wanted="torch.float32")
    shape = tuple(scale.shape)
    if shape in ((), (1,)) or (size is not None and len(shape) == 1 and shape[0] == size):
        return
    wanted = "one value, of shape () or (1,)"
    if size is not None:
        wanted += f", or shape ({size},), the size of a row"
    raise WrongArgument(op=op, parameter=parameter, got=f"of shape {shape}", wanted=wanted)


def check_filled(op: str, parameter: str, size: int) -> None:
    """Raise unless a row has an element, since there is no largest of none.

    Raises:
        WrongArgument: it has none.
    """
    if size == 0:
        raise WrongArgument(op=op, parameter=parameter, got="of last size 0", wanted="at least one element in a row")


def check_bound(op: str, size: int, scale_ub: Tensor | None) -> None:
    """Raise unless a row x has a largest magnitude, and the bound of that is absent or one value.

    Raises:
        WrongArgument: x has no elements in a row, or the bound does not fit.
    """
    check_filled(op, "x", size)
    if scale_ub is not None:
        check_scale(op, "scale_ub", scale_ub)


def check_group_size(op: str, group_size: int, size: int) -> None:
    """Raise unless a row is made of whole groups.

    Raises:
        WrongArgument: it is not, or a group has no element.
    """
    check_number(op, "group_size", group_size)
    if group_size < 1 or size % group_size:
        raise WrongArgument(
            op=op,
            parameter="group_size",
            got=str(group_size),
            wanted=f"a number from 1 on that divides {size}, the size of a row",
        )
