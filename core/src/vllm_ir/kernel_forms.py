"""What torch runs of a kernel that is one of its ops: with all arguments, in both forms, and on fake tensors.

How that is defined in torch is left to `kernel_op`, and what results are held against to `kernel_results`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vllm_ir.errors import SharedDonation
from vllm_ir.kernel_results import Results
from vllm_ir.memory import lie_apart, share
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
        outputs = op.declaration.types.outputs
        self.left = len(outputs) - len(written)
        self._returned = Results(op.name, name, kernel, outputs, self._promise)
        self._left_over = Results(op.name, f"{name}_", kernel, outputs, self._promise)

    def inplace_schema(self, names: tuple[str, ...]) -> str:
        """Return the schema of the form that writes."""
        schema = infer_schema(self._op.declaration.native, f"op {self._op.name!r}", names)
        outputs = ", ".join(self._op.declaration.types.outputs[: self.left])
        return f"{schema.rpartition(' -> ')[0]} -> {outputs if self.left == 1 else f'({outputs})'}"

    def _all(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return arguments with the defaults behind them: torch leaves those out that are given as they are."""
        return (*args, *self._defaults[len(args) :])

    def run(self, *args: Any) -> Any:
        """Return the results as new tensors.

        Raises:
            UnfitResult: one is not as torch was told that it is.
        """
        given = self._all(args)
        results = self._returned.several(self._call(given, donated=False))
        self._returned.check(results, given)
        return results[0] if len(results) == 1 else results

    def run_fake(self, *args: Any) -> Any:
        """Return what the results are like."""
        given = self._all(args)
        if self._fake is not None:
            return self._fake(*given)
        return self._op.run_fake(*map(_contiguous, given))

    def write(self, *args: Any) -> Any:
        """Write the activations, whatever the kernel could write in place, and return the other results.

        A graph that was made for separate tensors may be given some that share memory, for which torch has no guard:
        the kernel may not write then, since what it has written it could read as something else.

        Raises:
            SharedDonation: two of the activations lie in the same memory, so that two results cannot.
            UnfitResult: a result is not like the activation that it is to lie in, or not as torch was told.
        """
        given = self._all(args)
        targets = [given[place] for place in self._written]
        apart = lie_apart(given, self._written)
        if not apart:
            self._refuse_shared(targets)
        results = self._left_over.several(self._call(given, donated=apart))
        self._left_over.check(results[: self.left], given)
        homes = [None] * self.left + targets
        for place, target in enumerate(targets, self.left):
            if results[place] is not target:
                parameter = self._op.declaration.signature.names[self._written[place - self.left]]
                self._left_over.check_place(place, results[place], parameter, target)
        safe = [_out_of_the_way(result, home, targets) for result, home in zip(results, homes, strict=True)]
        for target, result in zip(targets, safe[self.left :], strict=True):
            if result is not target:
                target.copy_(result)
        return self._rest(tuple(safe))

    def write_fake(self, *args: Any) -> Any:
        """Return what the other results are like."""
        told = self.run_fake(*args)
        return self._rest(tuple(told) if isinstance(told, (tuple, list)) else (told,))

    def _call(self, given: tuple[Any, ...], *, donated: bool) -> Any:
        """Call the kernel as the contract has it: whether it may write is said where there is anything to write."""
        return self._kernel(*given, donated) if self._written else self._kernel(*given)

    def _promise(self, *given: Any) -> Any:
        """Return what the results of a real call are like."""
        return self.run_fake(*map(_stand_in, given))

    def _refuse_shared(self, targets: list[torch.Tensor]) -> None:
        """Raise if two contiguous tensors lie in the same memory; others may have each other's elements between theirs.

        Raises:
            SharedDonation: two of them do.
        """
        solid = [(place, each) for place, each in enumerate(targets) if each.is_contiguous()]
        for i, (place, one) in enumerate(solid):
            for earlier, other in solid[:i]:
                if share(one, other):
                    names = [self._op.declaration.signature.names[self._written[each]] for each in (earlier, place)]
                    raise SharedDonation(op=self._op.name, name=f"{self._name}_", parameters=names)

    def _rest(self, results: tuple[Any, ...]) -> Any:
        """Return the results that are not written."""
        return results[0] if self.left == 1 else results[: self.left] if self.left else None


def _out_of_the_way(result: torch.Tensor, home: torch.Tensor | None, targets: list[torch.Tensor]) -> torch.Tensor:
    """Return a result that stays what it is while the others are copied to where they are to lie.

    Args:
        result: what a kernel has returned.
        home: the tensor that it is to lie in, if any; it is returned where the result lies there already.
        targets: all tensors that are written.
    """
    if result is home:
        return result
    if home is not None and (result.data_ptr(), result.stride()) == (home.data_ptr(), home.stride()):
        return home
    return result.clone() if any(share(result, target) for target in targets) else result


def _contiguous(value: Any) -> Any:
    """Return a contiguous tensor for a tensor, without asking of what sizes it is; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [_contiguous(each) for each in value]
    return value.new_empty(value.shape) if isinstance(value, torch.Tensor) else value


def _stand_in(value: Any) -> Any:
    """Return a tensor of the same kind without memory for a tensor; anything else as it is."""
    if isinstance(value, (list, tuple)):
        return [_stand_in(each) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
