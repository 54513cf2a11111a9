"""What registering needs: whether a declaration fits, and an op's switchboard and overloads.

When something is registered, and what happens if a part of it fails, is `staging`'s.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_ir import runtime, torch_binding
from vllm_ir.dispatch import select
from vllm_ir.errors import DuplicateImplementation, InplaceNotAllowed, SchemaMismatch, TornDeclaration
from vllm_ir.failure import explain_failure
from vllm_ir.op import IrOpInplace
from vllm_ir.signature import infer_schema
from vllm_ir.switchboard import Switchboard

if TYPE_CHECKING:
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp


def bind_op(op: IrOp) -> tuple[IrOp, Switchboard, torch_binding.Binding]:
    """Give an op its switchboard and its torch overloads."""
    state = runtime.current()

    def failed(error: Exception, *args: Any) -> None:
        """Note on an exception which provider ran, found by asking again; predicates have no effects."""
        provider = None
        with contextlib.suppress(Exception):
            provider = op.dispatch(*args).provider
        explain_failure(op, error, args, provider)

    def exhausted(*args: Any) -> Any:
        """Raise with every refusal."""
        candidates = state.candidates(op, state.current_wishes(op))
        return select(op.name, candidates, args, batch_invariant=state.policy.batch_invariant)

    board = Switchboard(op, state.warm, failed, exhausted, state.changes)
    inplace = board.inplace
    retired = state.retired.get(op.name)
    binding = torch_binding.bind(op.declaration, board.default.kernel, op.run_fake, retired)
    op.torch_op, op.native_torch_op = binding.default, binding.native
    board.default.connect(binding.default)
    if isinstance(op, IrOpInplace) and inplace is not None and binding.maybe_inplace is not None:
        op.maybe_inplace.torch_op = binding.maybe_inplace
        inplace.connect(binding.maybe_inplace)
    return op, board, binding


def forget_op(op: IrOp) -> None:
    """Take an op out of the registry; for tests. Torch keeps its name and schema, for graphs may hold its overloads."""
    state = runtime.current()
    state.retired[op.name] = state.uninstall(op).binding


def fit(op: IrOp, impl: IrOpImpl) -> IrOpImpl:
    """Return an implementation as its op holds it.

    Raises:
        TornDeclaration: it was declared for another op.
        SchemaMismatch: its schema, or that of its functional form, is not the op's.
        InplaceNotAllowed: it writes to activations and the op has no in-place form.
        DuplicateImplementation: the provider has one already.
    """
    if impl.op_name != op.name:
        raise TornDeclaration(op=op.name, provider=impl.provider, declared=impl.op_name)
    for part, function in (("implementation", impl.impl_fn), ("functional", impl.functional)):
        if function is None:
            continue
        schema = infer_schema(function, f"{part} of op {op.name!r} by provider {impl.provider!r}")
        if schema != op.declaration.schema:
            raise SchemaMismatch(
                op=op.name, provider=impl.provider, got=schema, wanted=op.declaration.schema, part=part
            )
    if impl.inplace and not op.allow_inplace:
        raise InplaceNotAllowed(op=op.name, provider=impl.provider)
    if impl.provider in op.impls:
        raise DuplicateImplementation(op=op.name, provider=impl.provider, where=op.impls[impl.provider].where)
    return replace(impl, activation_indices=tuple(op.activation_indices))
