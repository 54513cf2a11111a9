"""The `maybe_inplace` of an op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.errors import UnregisteredOp

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from vllm_ir.op import IrOp


class InplaceOverload:
    """The `maybe_inplace` of an op: the same meaning, but the activations are donated and must not be used again.

    Attributes:
        op: the op.
        torch_op: the overload that tracers see.
    """

    torch_op: OpOverload

    def __init__(self, op: IrOp) -> None:
        self.op = op
        self.name = f"{op.name}.maybe_inplace"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG002 - the generated one takes the op's own
        """Run the op; results may be the activations. Generated per op with native's own signature."""
        raise UnregisteredOp(op=self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as the op's name."""
        return (getattr, (self.op, "maybe_inplace"))

    def __deepcopy__(self, memo: dict[int, Any]) -> InplaceOverload:
        """Return the overload itself; there is one per op."""
        return self

    def __repr__(self) -> str:
        """Return the name."""
        return f"<op {self.name}{self.op.declaration.signature}>"
