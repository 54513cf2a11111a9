"""What an op asks of the levels above it, as a protocol, so that it need not know them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.verdict import Explanation


class Engine(Protocol):
    """What an op asks of the level above it."""

    @property
    def finder(self) -> Callable[[str], IrOp]:
        """A function of a module that returns an op by name; a pickled op is a call of it."""

    def dispatch(self, op: IrOp, args: Sequence[Any]) -> IrOpImpl:
        """Return the implementation that runs a call."""

    def explain(self, op: IrOp, args: Sequence[Any] | None, *, compiling: bool) -> Explanation:
        """Return the verdict on every candidate."""

    def priority(self, op: IrOp) -> list[str]:
        """Return the providers that may be reached, in order."""

    def set_default(self, op: IrOp, providers: str | Sequence[str]) -> None:
        """Put providers first for the whole process."""

    def set_priority(self, op: IrOp, providers: str | Sequence[str]) -> AbstractContextManager[None]:
        """Put providers first in the current context."""
