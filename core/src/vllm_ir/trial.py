"""How an op is tested: what makes its inputs, and how far an implementation may be from native."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir.errors import BadSignature, MissingGenerator, MissingTolerance, WrongCall
from vllm_ir.tolerances import Tolerance, default_tolerances

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


@dataclass(slots=True)
class Trial:
    """The test side of one op.

    Attributes:
        op: the op's name.
        generator: makes arguments for one call, or None.
        tolerances: bounds by dtype that differ from the defaults.
    """

    op: str
    generator: Callable[..., tuple[Any, ...]] | None = None
    tolerances: dict[torch.dtype, Tolerance] = field(default_factory=dict)

    def set_generator(self, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        """Set the generator and return it.

        Raises:
            BadSignature: it does not take `num_tokens`.
        """
        if "num_tokens" not in inspect.signature(function).parameters:
            raise BadSignature(
                who=f"input generator of op {self.op!r}",
                problem="it does not take num_tokens",
                fix="Add the parameter; benchmarks vary it.",
            )
        self.generator = function
        return function

    def generate(self, **kwargs: Any) -> tuple[Any, ...]:
        """Return arguments for one call.

        Raises:
            MissingGenerator: there is no generator.
            WrongCall: it does not take such keywords.
        """
        if self.generator is None:
            raise MissingGenerator(op=self.op)
        signature = inspect.signature(self.generator)
        try:
            signature.bind(**kwargs)
        except TypeError as error:
            raise WrongCall(op=f"{self.op}.generate_inputs", problem=str(error), signature=str(signature)) from None
        return self.generator(**kwargs)

    def tolerance(self, dtype: torch.dtype) -> Tolerance:
        """Return the bounds for a dtype.

        Raises:
            MissingTolerance: neither the op nor the defaults have any.
        """
        known = {**default_tolerances(), **self.tolerances}
        if dtype not in known:
            raise MissingTolerance(op=self.op, dtype=str(dtype), known=[str(name) for name in known])
        return known[dtype]
