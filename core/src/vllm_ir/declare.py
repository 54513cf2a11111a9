"""Declaring an op by its meaning, and whether tracers see it as a torch op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from vllm_ir import runtime
from vllm_ir.declaration import OpDeclaration
from vllm_ir.errors import BadValue
from vllm_ir.implementation import caller
from vllm_ir.op import IrOp, IrOpInplace
from vllm_ir.overload import InplaceOverload
from vllm_ir.selection import Selection
from vllm_ir.staging import admit, check_op_name, open_staging, transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


@overload
def register_op(function: Callable[..., Any]) -> IrOp: ...
@overload
def register_op(
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: Literal[False] = False,
    batch_invariant: bool = False,
    parts: Sequence[IrOp] = (),
    expansion: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], IrOp]: ...
@overload
def register_op(
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: Literal[True],
    batch_invariant: bool = False,
    parts: Sequence[IrOp] = (),
    expansion: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], IrOpInplace]: ...


def register_op(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    activations: Sequence[str] | None = None,
    allow_inplace: bool = False,
    batch_invariant: bool = False,
    parts: Sequence[IrOp] = (),
    expansion: Callable[..., Any] | None = None,
) -> IrOp | Callable[[Callable[..., Any]], IrOp]:
    """Register an op whose meaning is the decorated function.

    Args:
        function: the native function: annotated tensors, numbers, texts in; tensors out. It is reference, fake and
            fallback at once.
        name: the op's name; the function's when None.
        activations: parameters that `maybe_inplace` donates; those that begin with "x" when None.
        allow_inplace: make a `maybe_inplace`; the function must return at least one tensor per activation.
        batch_invariant: whether eager native's row does not depend on the other rows, bit for bit.
        parts: ops that this one is made of. The function then takes `parts` first, which is no parameter of the op,
            and calls each op by its name there: `parts.rms_norm(x, weight, epsilon)`. Native calls the parts' native
            functions; provider `unfused` calls the parts, each of which selects for itself. What it gives to
            `parts.owned` it has made itself and does not read again; to `parts.donated` go activations of the op.
        expansion: such a function over parts, where native is written otherwise for speed; it must have native's bits
            when its parts are native.

    Returns:
        The op, or a decorator that returns it.

    Raises:
        DeclarationError: something does not fit; neither the registry nor torch has changed.
    """
    where = caller(2)

    def register(native: Callable[..., Any]) -> IrOp:
        """Register the decorated function's op."""
        _check_parts(native if name is None else name, parts, expansion)
        declaration = OpDeclaration.read(
            native,
            name=name,
            activations=activations,
            allow_inplace=allow_inplace,
            batch_invariant=batch_invariant,
            where=where,
            parts=parts,
            expansion=expansion,
        )
        op = make_op(declaration)
        staging = open_staging()
        if staging is not None:
            staging.add_ops([op])
            return op
        check_op_name(op, None)
        with transaction(None) as alone:
            alone.ops[op.name] = op
        return op

    return register if function is None else register(function)


def _check_parts(name: object, parts: Sequence[IrOp], expansion: Callable[..., Any] | None) -> None:
    """Raise unless the parts are ops, and there are some where an expansion says how they are put together.

    Raises:
        BadValue: they are not.
    """
    who = f"op {getattr(name, '__name__', name)!r}"
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, IrOp) for part in parts):
        raise BadValue(who=who, field="parts", got=repr(parts), wanted="a tuple of ops")
    if expansion is not None and not parts:
        raise BadValue(who=who, field="expansion", got=repr(expansion), wanted="None, or the parts that it calls")


def enable_torch_wrap(enable: bool = True) -> AbstractContextManager[None]:
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


def make_op(declaration: OpDeclaration) -> IrOp:
    """Return an op that is neither bound nor registered; its class is its own, for a call with native's signature."""
    base = IrOpInplace if declaration.allow_inplace else IrOp
    op: IrOp = type(f"IrOp_{declaration.name}", (base,), {"__module__": IrOp.__module__})(
        declaration, Selection(runtime.current()), admit
    )
    if isinstance(op, IrOpInplace):
        op.maybe_inplace = type(f"Inplace_{op.name}", (InplaceOverload,), {"__module__": IrOp.__module__})(op)
    return op
