"""Fake tensors in place of those of a call: predicates see dtype, sizes, strides and device, and nothing is allocated.

How a call is written is left to `arguments`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.cli.arguments import DtypeSpec, TensorSpec, complete, no_dtype
from vllm_ir.errors import IrError, MalformedArguments, WrongCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from vllm_ir.op import IrOp

TOKENS: Final = 4
"""The tokens of an op's own example."""


def written(op: IrOp, arguments: Mapping[str, object], device: str) -> tuple[Any, ...]:
    """Return the values of every parameter of an op, in order, as they were written; tensors are fake.

    Args:
        op: the op.
        arguments: what `arguments.parse` returned.
        device: torch device type of the tensors; none of that kind need be here.

    Raises:
        UnknownArgument: a name that the op does not have.
        MissingArgument: a parameter without default that is not given.
        MalformedArguments: torch knows no such tensor, a tensor is written without sizes, or a dtype is none.
    """
    mode = _mode()
    given = complete(op.name, op.declaration.signature, arguments)
    values: list[Any] = []
    for (name, value), word in zip(given.items(), op.declaration.types.words, strict=True):
        if isinstance(value, TensorSpec):
            values.append(_make(mode, name, value, device))
        elif isinstance(value, str) and "ScalarType" in word:
            raise no_dtype(f"{name}={value}", value)
        else:
            values.append(_plain(name, value, word) if isinstance(value, DtypeSpec) else value)
    return tuple(values)


def _plain(name: str, spec: DtypeSpec, word: str) -> Any:
    """Return what the name of a dtype stands for: the dtype where the op asks for one, else the text."""
    import torch

    if "Tensor" in word:
        raise MalformedArguments(
            text=f"{name}={spec.text}", reason=f"tensor {name!r} has no sizes, write {spec.text}[4,64]"
        )
    return getattr(torch, spec.dtype) if "ScalarType" in word else spec.text


def example(op: IrOp, device: str) -> tuple[Any, ...]:
    """Return an op's own example of a call, its tensors fake.

    Args:
        op: the op.
        device: torch device type of the tensors.

    Raises:
        MissingGenerator: the op has no generator of inputs.
    """
    mode = _mode()
    values = _generate(op, device, mode)
    return tuple(_stand_in(mode, f"argument {index}", value, device) for index, value in enumerate(values))


def check_call(op: IrOp, values: tuple[Any, ...]) -> None:
    """Refuse a call that the op itself cannot mean anything with; native is asked on the meta device, at no cost.

    Raises:
        CallError: what is wrong with it.
    """
    import torch

    metas = [
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]
    try:
        op.run_fake(*metas)
    except IrError:
        raise
    except Exception as error:
        problem = f"native cannot take it: {type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
        raise WrongCall(op=op.name, problem=problem, signature=str(op.declaration.signature)) from error


def in_words(value: object) -> str:
    """Return one argument as `--args` takes it."""
    if hasattr(value, "dtype") and hasattr(value, "stride"):
        tensor: Any = value
        strides = None if tensor.is_contiguous() else tuple(tensor.stride())
        return str(TensorSpec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), strides))
    if type(value).__module__ == "torch" and type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _mode() -> FakeTensorMode:
    """Return a mode in which tensors are fake; importing it takes as long as torch itself."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def _generate(op: IrOp, device: str, mode: FakeTensorMode) -> tuple[Any, ...]:
    """Return what an op's generator gives: fakes, but where it reads values, a few real ones on the CPU."""
    with contextlib.suppress(WrongCall):
        try:
            with mode:
                return op.generate_inputs(num_tokens=TOKENS, device=device)
        except IrError:
            raise
        except Exception:  # noqa: BLE001 - whatever a generator does with values, fakes have none
            return op.generate_inputs(num_tokens=TOKENS, device="cpu")
    return op.generate_inputs(num_tokens=TOKENS)


def _stand_in(mode: FakeTensorMode, name: str, value: Any, device: str) -> Any:
    """Return a fake tensor like a real one; anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    spec = TensorSpec(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))
    return _make(mode, name, spec, device)


def _make(mode: FakeTensorMode, name: str, spec: TensorSpec, device: str) -> torch.Tensor:
    """Return a fake tensor of a description."""
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    try:
        with mode:
            if spec.strides is None:
                return torch.empty(spec.shape, dtype=dtype, device=device)
            return torch.empty_strided(spec.shape, spec.strides, dtype=dtype, device=device)
    except (RuntimeError, OverflowError, TypeError) as error:
        reason = f"torch makes no such tensor: {' '.join(str(error).split()).rstrip('.')}"
        raise MalformedArguments(text=f"{name}={spec}", reason=reason) from error
