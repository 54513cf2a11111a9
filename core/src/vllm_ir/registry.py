"""Ops by name. Who may be added, and what follows from it, is decided above."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.errors import UnknownOp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir.op import IrOp


class Registry:
    """The ops of a process; reading needs no lock because a dict's item is set at once."""

    def __init__(self, ops: dict[str, IrOp] | None = None) -> None:
        self._ops: dict[str, IrOp] = dict(ops or {})

    def __contains__(self, name: object) -> bool:
        """Return whether an op of that name is registered."""
        return name in self._ops

    def __iter__(self) -> Iterator[IrOp]:
        """Iterate over the ops in the order of their registration."""
        return iter(tuple(self._ops.values()))

    def __len__(self) -> int:
        """Return how many ops there are."""
        return len(self._ops)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all ops in the order of their registration."""
        return tuple(self._ops)

    def get(self, name: str, layer: str | None = None) -> IrOp:
        """Return the op of that name.

        Args:
            name: the op's name.
            layer: who named it, for the error.

        Raises:
            UnknownOp: no op of that name is registered.
        """
        try:
            return self._ops[name]
        except KeyError:
            raise UnknownOp(op=name, known=self.names, layer=layer) from None

    def add(self, op: IrOp) -> None:
        """Add an op; the caller has made sure that the name is free."""
        self._ops[op.name] = op

    def remove(self, name: str) -> None:
        """Forget an op."""
        self._ops.pop(name, None)

    def copy(self) -> Registry:
        """Return a registry of the same ops that changes apart from this one."""
        return Registry(self._ops)
