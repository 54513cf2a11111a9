"""What is added to an exception that comes out of a call: who ran, or which argument was wrong.

The exception itself goes on untouched; no other kernel is tried, since its inputs may be half written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.errors import CallError, IrError, WrongArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir.op import IrOp

_WANTED = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def explain_failure(op: IrOp, error: Exception, args: Sequence[Any], provider: str | None) -> None:
    """Raise a better error where an argument is wrong, else note on the exception which op and provider ran.

    Args:
        op: the op that was called.
        error: what came out of the call.
        args: all arguments by position.
        provider: who would run such a call, or None when that cannot be said.

    Raises:
        WrongArgument: an argument has a type that the op's schema does not take.
    """
    if isinstance(error, IrError) and not isinstance(error, CallError):
        return
    # A wrong type may have misled native into complaining of another argument.
    wrong = find_wrong_argument(op, args)
    if wrong is not None:
        raise wrong from error
    if isinstance(error, IrError):
        return
    note = f"while op {op.name!r} ran on provider {provider!r}" if provider else f"while op {op.name!r} ran"
    notes = getattr(error, "__notes__", [])
    if any(str(text).startswith(f"while op {op.name!r}") for text in notes):
        return
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10 has no add_note; the attribute is what newer ones read
        error.__notes__ = [*notes, note]  # type: ignore[attr-defined,unused-ignore]


def find_wrong_argument(op: IrOp, args: Sequence[Any]) -> WrongArgument | None:
    """Return the error for the first argument whose type the schema does not take."""
    import torch

    types = op.declaration.types
    for name, kind, word, value in zip(op.declaration.signature.names, types.kinds, types.words, args, strict=False):
        optional = word.startswith("Optional[")
        if optional and value is None:
            continue
        inner = word.removeprefix("Optional[").removesuffix("]") if optional else word
        if kind in ("tensor", "optional tensor"):
            fits = isinstance(value, torch.Tensor) or hasattr(type(value), "__torch_function__")
            wanted = "a Tensor or None" if optional else "a Tensor"
        elif inner in _WANTED:
            fits = isinstance(value, (*_WANTED[inner], torch.SymInt, torch.SymFloat, torch.SymBool)) and (
                inner == "bool" or not isinstance(value, bool)
            )
            wanted = f"{inner} or None" if optional else inner
        elif inner == "ScalarType":
            fits = isinstance(value, torch.dtype)
            wanted = "a torch.dtype or None" if optional else "a torch.dtype"
        else:
            continue
        if not fits:
            return WrongArgument(op=op.name, parameter=name, got=_described(value), wanted=wanted)
    return None


def _described(value: object) -> str:
    """Return type and value in few words."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"  # noqa: PLR2004
