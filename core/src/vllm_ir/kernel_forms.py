"""What torch runs of a kernel that is one of its ops: with all arguments, in both forms, and on fake tensors.

How that is defined in torch is left to `kernel_op`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_ir.errors import UnfitResult
from vllm_ir.signature import infer_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.op import IrOp


class KernelForms:
    """What torch runs of one op: both forms, and their fakes.

    Attributes:
        left: how many results are returned by the form that writes.
    """

    def __init__(
        self,
        op: IrOp,
        name: str,
        kernel: Callable[..., Any],
        fake: Callable[..., Any] | None,
        written: tuple[int, ...],
    ) -> None:
        self._op, self._name, self._kernel, self._fake, self._written = op, name, kernel, fake, written
        self._defaults = tuple(parameter.default for parameter in op.declaration.signature.parameters)
        self.left = len(op.declaration.types.outputs) - len(written)

    def inplace_schema(self, names: tuple[str, ...]) -> str:
        """Return the schema of the form that writes."""
        schema = infer_schema(self._op.declaration.native, f"op {self._op.name!r}", names)
        outputs = ", ".join(self._op.declaration.types.outputs[: self.left])
        return f"{schema.rpartition(' -> ')[0]} -> {outputs if self.left == 1 else f'({outputs})'}"

    def _all(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with the defaults behind them: torch leaves those out that are given as they are."""
        return (*args, *self._defaults[len(args) :])

    def run(self, *args: Any) -> Any:
        """Return the results as new tensors."""
        given = self._all(args)
        return self._kernel(*given, False) if self._written else self._kernel(*given)  # noqa: FBT003 - see the contract

    def run_fake(self, *args: Any) -> Any:
        """Return what the results are like."""
        given = self._all(args)
        if self._fake is not None:
            return self._fake(*given)
        return self._op.run_fake(*map(_contiguous, given))

    def write(self, *args: Any) -> Any:
        """Write the activations, whatever the kernel could write in place, and return the other results.

        Raises:
            UnfitResult: a result is not like the activation that it is to lie in.
        """
        given = self._all(args)
        results = _several(self._kernel(*given, True))  # noqa: FBT003 - see the contract
        for place, result in zip(self._written, results[self.left :], strict=True):
            target = given[place]
            if result is target:
                continue
            if (result.dtype, result.shape) != (target.dtype, target.shape):
                parameter = self._op.declaration.signature.names[place]
                raise UnfitResult(
                    op=self._op.name,
                    name=f"{self._name}_",
                    parameter=parameter,
                    got=_kind(result),
                    wanted=_kind(target),
                )
            target.copy_(result)
        return self._rest(results)

    def write_fake(self, *args: Any) -> Any:
        """Return what the other results are like."""
        return self._rest(_several(self.run_fake(*args)))

    def _rest(self, results: tuple[Any, ...]) -> Any:
        """Return the results that are not written."""
        return results[0] if self.left == 1 else results[: self.left] if self.left else None


def _contiguous(value: Any) -> Any:
    """Return a contiguous tensor for a tensor, without asking of what sizes it is; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [_contiguous(each) for each in value]
    return value.new_empty(value.shape) if isinstance(value, torch.Tensor) else value


def _several(results: Any) -> tuple[Any, ...]:
    """Return one result or several as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _kind(x: torch.Tensor) -> str:
    """Return a tensor's dtype and sizes as text."""
    return f"{x.dtype} {list(x.shape)}"
