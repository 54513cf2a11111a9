"""Declaring ops and implementations: everything is checked, then bound, then registered, or nothing is.

Inside a `transaction` all of it waits until the end, so that a distribution comes whole or not at all.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from vllm_ir import runtime, torch_binding
from vllm_ir.declaration import OpDeclaration
from vllm_ir.dispatch import select
from vllm_ir.errors import (
    BadValue,
    DuplicateImplementation,
    DuplicateOp,
    InplaceNotAllowed,
    SchemaMismatch,
    TornDeclaration,
)
from vllm_ir.failure import explain_failure
from vllm_ir.implementation import IrOpImpl, caller
from vllm_ir.op import InplaceOverload, IrOp, IrOpInplace
from vllm_ir.signature import infer_schema
from vllm_ir.switchboard import Switchboard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


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
        return self.ops[name] if name in self.ops else runtime.current().registry.get(name)

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

    def commit(self) -> None:
        """Bind and register everything, or nothing."""
        state = runtime.current()
        with state.lock:
            try:
                for op in self.ops.values():
                    check_op_name(op, None)
                    self.bound.append(bind_op(op))
                for impl in self.implementations:
                    if impl.op_name not in self.ops:
                        fit(state.registry.get(impl.op_name), impl)
            except BaseException:
                for op, _, binding in self.bound:
                    if state.retired.get(op.name) is not binding:
                        torch_binding.unbind(binding)
                    vars(op).pop("torch_op", None)
                raise
            for op, board, binding in self.bound:
                board.binding = state.retired.pop(op.name, binding)
                state.install(op, board)
            for impl in self.implementations:
                op = state.registry.get(impl.op_name)
                op._impls[impl.provider] = impl  # noqa: SLF001 - registering is the one writer of this dict
            for name in dict.fromkeys(impl.op_name for impl in self.implementations):
                state.refresh(state.registry.get(name))


@contextlib.contextmanager
def transaction(distribution: str | None, devices: frozenset[str] | None = None) -> Iterator[Staging]:
    """Hold back everything that is declared inside, and register all of it at the end.

    Args:
        distribution: whose declarations they are.
        devices: torch device types whose tensors the implementations may be given; None when they take any.

    Yields:
        what is held back; ops and declarations can be added to it.

    Raises:
        DeclarationError, ConfigurationError: something does not fit; nothing of it is registered.
    """
    staging = Staging(distribution, devices)
    open_staging = runtime.current().staging
    token = open_staging.set(staging)
    try:
        yield staging
    finally:
        open_staging.reset(token)
    staging.commit()


@overload
def register_op(function: Callable[..., Any]) -> IrOp: ...
@overload
def register_op(
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: Literal[False] = False,
    batch_invariant: bool = False,
) -> Callable[[Callable[..., Any]], IrOp]: ...
@overload
def register_op(
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: Literal[True],
    batch_invariant: bool = False,
) -> Callable[[Callable[..., Any]], IrOpInplace]: ...


def register_op(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
    batch_invariant: bool = False,
) -> IrOp | Callable[[Callable[..., Any]], IrOp]:
    """Register an op whose meaning is the decorated function.

    Args:
        function: the native function: annotated tensors, numbers, texts in; tensors out. It is reference, fake and
            fallback at once.
        name: the op's name; the function's when None.
        activations: parameters that `maybe_inplace` donates; those that begin with "x" when None.
        allow_inplace: make a `maybe_inplace`; the function must return one tensor per activation.
        batch_invariant: whether eager native's row does not depend on the other rows, bit for bit.

    Returns:
        The op, or a decorator that returns it.

    Raises:
        DeclarationError: something does not fit; neither the registry nor torch has changed.
    """
    where = caller(2)

    def register(native: Callable[..., Any]) -> IrOp:
        """Register the decorated function's op."""
        declaration = OpDeclaration.read(
            native,
            name=name,
            activations=activations,
            allow_inplace=allow_inplace,
            batch_invariant=batch_invariant,
            where=where,
        )
        op = make_op(declaration)
        staging = _open_staging()
        if staging is not None:
            staging.add_ops([op])
            return op
        check_op_name(op, None)
        with transaction(None) as alone:
            alone.ops[op.name] = op
        return op

    return register if function is None else register(function)


def enable_torch_wrap(enable: bool = True) -> contextlib.AbstractContextManager[None]:
    """Set in the current context whether tracers see ops as torch ops, while the returned context manager is open.

    Args:
        enable: False leads tracers straight into the implementation that would run.
    """
    return runtime.current().wrap_scope(enable=enable)


def set_default_torch_wrap(enable: bool = True) -> None:
    """Set for the whole process whether tracers see ops as torch ops.

    Args:
        enable: False leads tracers straight into the implementation that would run.
    """
    runtime.current().wrap(enable=enable)


def _open_staging() -> Staging | None:
    """Return the transaction that is open in the current context."""
    staging = runtime.current().staging.get()
    return staging if isinstance(staging, Staging) else None


def make_op(declaration: OpDeclaration) -> IrOp:
    """Return an op that is neither bound nor registered; its class is its own, for a call with native's signature."""
    base = IrOpInplace if declaration.allow_inplace else IrOp
    op: IrOp = type(f"IrOp_{declaration.name}", (base,), {"__module__": IrOp.__module__})(
        declaration, runtime.current(), admit
    )
    if isinstance(op, IrOpInplace):
        op.maybe_inplace = type(f"Inplace_{op.name}", (InplaceOverload,), {"__module__": IrOp.__module__})(op)
    return op


def bind_op(op: IrOp) -> tuple[IrOp, Switchboard, torch_binding.Binding]:
    """Give an op its switchboard and its torch overloads."""
    state = runtime.current()

    def failed(error: Exception, *args: Any) -> None:
        """Note on an exception which provider ran, found by asking again; predicates have no effects."""
        provider = None
        with contextlib.suppress(Exception):
            provider = state.dispatch(op, args).provider
        explain_failure(op, error, args, provider)

    def exhausted(*args: Any) -> Any:
        """Raise with every refusal."""
        candidates = state.candidates(op, state.current_wishes(op))
        return select(op.name, candidates, args, batch_invariant=state.environment.batch_invariant)

    board = Switchboard(op, state.warm, failed, exhausted)
    inplace = board.inplace
    retired = state.retired.get(op.name)
    kernels = (board.default.kernel, inplace.kernel if inplace else None)
    binding = torch_binding.bind(op.declaration, *kernels, op.run_fake, retired)
    op.torch_op = binding.default
    board.default.connect(binding.default)
    if isinstance(op, IrOpInplace) and inplace is not None and binding.maybe_inplace is not None:
        op.maybe_inplace.torch_op = binding.maybe_inplace
        inplace.connect(binding.maybe_inplace)
    return op, board, binding


def forget_op(op: IrOp) -> None:
    """Take an op out of the registry; for tests. Torch keeps its name and schema, for graphs may hold its overloads."""
    state = runtime.current()
    state.retired[op.name] = state.uninstall(op).binding


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


def fit(op: IrOp, impl: IrOpImpl) -> IrOpImpl:
    """Return an implementation as its op holds it.

    Raises:
        TornDeclaration: it was declared for another op.
        SchemaMismatch: its schema is not the op's.
        InplaceNotAllowed: it writes to activations and the op has no in-place form.
        DuplicateImplementation: the provider has one already.
    """
    if impl.op_name != op.name:
        raise TornDeclaration(op=op.name, provider=impl.provider, declared=impl.op_name)
    schema = infer_schema(impl.impl_fn, f"implementation of op {op.name!r} by provider {impl.provider!r}")
    if schema != op.declaration.schema:
        raise SchemaMismatch(op=op.name, provider=impl.provider, got=schema, wanted=op.declaration.schema)
    if impl.inplace and not op.allow_inplace:
        raise InplaceNotAllowed(op=op.name, provider=impl.provider)
    if impl.provider in op.impls:
        raise DuplicateImplementation(op=op.name, provider=impl.provider, where=op.impls[impl.provider].where)
    return replace(impl, activation_indices=tuple(op.activation_indices))


def admit(op: IrOp, impl: IrOpImpl) -> IrOpImpl:
    """Register one implementation, or keep it for the transaction that is open.

    Raises:
        DeclarationError: it does not fit its op; nothing is registered.
    """
    staging = _open_staging()
    if staging is not None:
        return staging.stage(op, impl)
    state = runtime.current()
    with state.lock:
        ready = fit(op, impl)
        op._impls[ready.provider] = ready  # noqa: SLF001 - registering is the one writer of this dict
        state.refresh(op)
    return ready
