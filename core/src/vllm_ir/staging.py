"""All or nothing: what is declared together is checked together, then bound, then registered, or none of it is."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vllm_ir import runtime, torch_binding
from vllm_ir.errors import BadValue, DuplicateImplementation, DuplicateOp, UnknownOp
from vllm_ir.implementation import IrOpImpl
from vllm_ir.op import IrOp
from vllm_ir.registration import bind_op, fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm_ir.runtime import Runtime
    from vllm_ir.switchboard import Switchboard


@dataclass(slots=True)
class Staging:
    """What a transaction will register.

    Attributes:
        distribution: whose it is.
        devices: torch device types whose tensors its implementations may be given; None when they take any.
        ops: ops declared so far.
        implementations: implementations declared so far, with their ops' names.
    """

    distribution: str | None
    devices: frozenset[str] | None = None
    ops: dict[str, IrOp] = field(default_factory=dict)
    implementations: list[IrOpImpl] = field(default_factory=list)
    bound: list[tuple[IrOp, Switchboard, torch_binding.Binding]] = field(default_factory=list)

    def add_ops(self, ops: Iterable[IrOp]) -> None:
        """Add ops; those that are registered already, or staged, are left as they are.

        Raises:
            BadValue: an item is no op.
            DuplicateOp: another op has the name.
        """
        for op in ops:
            if not isinstance(op, IrOp):
                raise BadValue(
                    who=f"distribution {self.distribution!r}",
                    field="an item of its ops",
                    got=repr(op),
                    wanted="an IrOp",
                )
            if self.ops.get(op.name) is not op:
                check_op_name(op, self)
                if op.name not in runtime.current().registry:
                    self.ops[op.name] = op

    def add_implementations(self, implementations: Iterable[IrOpImpl]) -> None:
        """Add declarations made with `implements`.

        Raises:
            BadValue: an item is no declaration.
            UnknownOp, SchemaMismatch, InplaceNotAllowed, DuplicateImplementation: it does not fit its op.
        """
        for impl in implementations:
            if not isinstance(impl, IrOpImpl):
                raise BadValue(
                    who=f"distribution {self.distribution!r}",
                    field="an item of its implementations",
                    got=repr(impl),
                    wanted="a function declared with implements(...)",
                )
            self.stage(self.find(impl.op_name), impl)

    def find(self, name: str) -> IrOp:
        """Return a staged or registered op.

        Raises:
            UnknownOp: there is none of that name.
        """
        registry = runtime.current().registry
        found = self.ops.get(name)
        if found is None and name not in registry:
            raise UnknownOp(op=name, known=(*registry.names, *self.ops))
        return registry.get(name) if found is None else found

    def stage(self, op: IrOp, impl: IrOpImpl) -> IrOpImpl:
        """Check one implementation and keep it for the commit; the same declaration twice is one.

        Raises:
            SchemaMismatch, InplaceNotAllowed, DuplicateImplementation: it does not fit its op.
        """
        for staged in self.implementations:
            if (staged.op_name, staged.provider) == (op.name, impl.provider):
                if staged.impl_fn is impl.impl_fn:
                    return staged
                raise DuplicateImplementation(op=op.name, provider=impl.provider, where=staged.where)
        ready = replace(fit(op, impl), distribution=self.distribution, devices=self.devices)
        self.implementations.append(ready)
        return ready

    def absorb(self, inner: Staging) -> None:
        """Take over what a transaction inside this one held back; the declarations keep their distribution.

        Raises:
            DuplicateOp, DuplicateImplementation: it does not fit what is held back here.
        """
        self.add_ops(inner.ops.values())
        for impl in inner.implementations:
            for staged in self.implementations:
                if (staged.op_name, staged.provider) == (impl.op_name, impl.provider):
                    raise DuplicateImplementation(op=impl.op_name, provider=impl.provider, where=staged.where)
            self.implementations.append(impl)

    def commit(self) -> None:
        """Bind and register everything, or nothing."""
        state = runtime.current()
        with state.lock:
            self._bind(state)
            for op, board, binding in self.bound:
                board.binding = state.retired.pop(op.name, binding)
                state.install(op, board)
            for impl in self.implementations:
                op = state.registry.get(impl.op_name)
                op._impls[impl.provider] = impl  # noqa: SLF001 - registering is the one writer of this dict
            for name in dict.fromkeys(impl.op_name for impl in self.implementations):
                state.refresh(state.registry.get(name))

    def _bind(self, state: Runtime) -> None:
        """Check everything, then give every op what it needs of torch; undo that if one of them cannot have it."""
        # Torch last: what it has defined it can undo only as long as nobody has looked.
        for impl in self.implementations:
            if impl.op_name not in self.ops:
                fit(state.registry.get(impl.op_name), impl)
        for op in self.ops.values():
            check_op_name(op, None)
        try:
            for op in self.ops.values():
                self.bound.append(bind_op(op))
        except BaseException:
            for op, _, binding in self.bound:
                if state.retired.get(op.name) is not binding:
                    torch_binding.unbind(binding)
                vars(op).pop("torch_op", None)
                vars(op).pop("native_torch_op", None)
            raise


@contextlib.contextmanager
def transaction(distribution: str | None, devices: frozenset[str] | None = None) -> Iterator[Staging]:
    """Hold back everything that is declared inside, and register all of it at the end.

    One inside another hands what it held back to the outer one, which may still fail.

    Args:
        distribution: whose declarations they are.
        devices: torch device types whose tensors the implementations may be given; None when they take any.

    Yields:
        what is held back; ops and declarations can be added to it.

    Raises:
        DeclarationError, ConfigurationError: something does not fit; nothing of it is registered.
    """
    outer = open_staging()
    staging = Staging(distribution, devices)
    holder = runtime.current().staging
    token = holder.set(staging)
    try:
        yield staging
    finally:
        holder.reset(token)
    if outer is None:
        staging.commit()
    else:
        outer.absorb(staging)


def open_staging() -> Staging | None:
    """Return the transaction that is open in the current context."""
    staging = runtime.current().staging.get()
    return staging if isinstance(staging, Staging) else None


def check_op_name(op: IrOp, staging: Staging | None) -> None:
    """Raise if another op has the name.

    Raises:
        DuplicateOp: another op has it.
    """
    registry = runtime.current().registry
    taken = registry.get(op.name) if op.name in registry else None
    if staging is not None:
        taken = staging.ops.get(op.name, taken)
    if taken is not None and taken is not op:
        raise DuplicateOp(op=op.name, where=taken.declaration.where)


def admit(op: IrOp, impl: IrOpImpl) -> IrOpImpl:
    """Register one implementation, or keep it for the transaction that is open.

    Raises:
        DeclarationError: it does not fit its op; nothing is registered.
    """
    staging = open_staging()
    if staging is not None:
        return staging.stage(op, impl)
    state = runtime.current()
    with state.lock:
        ready = fit(op, impl)
        op._impls[ready.provider] = ready  # noqa: SLF001 - registering is the one writer of this dict
        state.refresh(op)
    return ready
