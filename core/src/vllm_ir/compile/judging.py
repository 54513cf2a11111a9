"""Who runs a call in a graph: the same predicate as in eager calls, asked on fake arguments and not about batches."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vllm_ir import dispatch, runtime
from vllm_ir.compile import dynamo, torch_sizes, torch_version
from vllm_ir.compile.graph import tensors_of
from vllm_ir.compile.tracing import describe
from vllm_ir.dispatch import BrokenPredicate, GuardingPredicate
from vllm_ir.errors import (
    BatchGuard,
    IrError,
    NoImplementation,
    PredicateFailed,
    RefusedArguments,
    UntraceableImplementation,
)
from vllm_ir.errors.compile import WRAP

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from vllm_ir.compile.plan import Plan
    from vllm_ir.dispatch import Candidate
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.verdict import Unsupported


class Judge:
    """Selects for the calls of one graph and remembers every refusal.

    Args:
        plan: the candidates.

    Attributes:
        refusals: op, provider, reason, and how many calls.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._asked: dict[object, Unsupported | None] = {}
        self._untraceable: dict[IrOpImpl, str] = {}
        self._batches: torch_sizes.OpenBatches | None = None
        self.refusals: dict[tuple[str, str, str], int] = {}

    def select(self, op: IrOp, args: Sequence[Any], *, without: Collection[IrOpImpl], where: str) -> IrOpImpl:
        """Return the first candidate that takes a call.

        Args:
            op: the op.
            args: fake arguments by position.
            without: candidates that were found out not to do.
            where: the user's line, for errors.

        Raises:
            NoImplementation: every candidate refuses.
            RefusedArguments, PredicateFailed: strict, and a refusal would fall back.
            BatchGuard: a predicate asks for a size that changes from call to call.
        """
        refusals: list[tuple[str, str]] = []
        for candidate in self._plan.orders[op.name]:
            impl, refusal = candidate.impl, candidate.refusal
            if impl is None or refusal is not None:
                refusals.append((candidate.entry.provider, str(refusal)))
                continue
            if impl in without:
                refusals.append((impl.provider, self._untraceable[impl]))
                continue
            refusal = self._judge(op, impl, args, where)
            if refusal is None:
                return impl
            self._refused(op, candidate, refusal)
            refusals.append((impl.provider, refusal.reason))
        raise NoImplementation(op=op.name, refusals=refusals, batch_invariant=self._plan.batch_invariant)

    def untraceable(self, op: IrOp, impl: IrOpImpl, error: Exception, where: str) -> None:
        """Take in that an implementation raised on fake tensors; one that a user named must run.

        Raises:
            UntraceableImplementation: a user named it, or it is the last resort.
        """
        cause, fix = " ".join(str(error).split()).rstrip("."), getattr(error, "fix", WRAP)
        if not isinstance(error, IrError):
            cause = f"{type(error).__name__}: {cause}"
        entry = next(c.entry for c in self._plan.orders[op.name] if c.impl is impl)
        if entry.required or self._plan.strict or impl.provider == "native":
            raise UntraceableImplementation(
                op=op.name, provider=impl.provider, cause=cause, where=where, fix=fix
            ) from (None if isinstance(error, IrError) else error)
        reason = f"it cannot be put into a graph: {cause}"
        self._untraceable[impl] = reason
        self._count(op.name, impl.provider, reason)
        self._warn(op.name, impl.provider, reason)

    def _judge(self, op: IrOp, impl: IrOpImpl, args: Sequence[Any], where: str) -> Unsupported | None:
        """Return why an implementation refuses a call; the same kind of arguments is asked about once."""
        key = (impl, *map(describe, args))
        if key in self._asked:
            return self._asked[key]
        shape_env = next((torch_version.shape_env_of(t) for t in tensors_of(tuple(args))), None)
        with torch_version.no_new_guards(shape_env), torch_sizes.forgetting_sizes(shape_env):
            refusal = dispatch.judge(impl, args)
        if isinstance(refusal, GuardingPredicate):
            question = torch_sizes.question_in(refusal.question)
            asked = _names_in(question)
            if asked & batch_sizes(args):
                raise BatchGuard(op=op.name, provider=impl.provider, guard=question, where=where)
            if asked & _open_sizes(args):
                refusal = BrokenPredicate(
                    f"supports_args needs a trailing size that this graph leaves open ({question}); mark it static"
                )
        self._asked[key] = refusal
        if not isinstance(refusal, BrokenPredicate):
            self._foresee(op, impl, args, where)
        return refusal

    def _foresee(self, op: IrOp, impl: IrOpImpl, args: Sequence[Any], where: str) -> None:
        """Warn if a predicate asks for the batch whose size this graph happens to know.

        The answer holds here, since this graph is for one size. But another one makes Dynamo compile a graph for all
        sizes, and that is an error then, maybe hours later. Only first sizes above one are taken for a batch.
        """
        if impl.predicate is None or _open_sizes(args) or not dynamo.opens_sizes_that_change():
            return
        tensors = tensors_of(tuple(args[index] for index in op.activation_indices))
        batches = {size for tensor in tensors for size in tensor.shape[:1] if tensor.dim() > 1 and size > 1}
        if not batches:
            return
        if self._batches is None:
            self._batches = torch_sizes.OpenBatches()
        opened = [_opened(value, batches, self._batches) for value in args]
        with torch_version.no_new_guards(self._batches.sizes):
            refusal = dispatch.judge(impl, opened)
        question = torch_sizes.question_in(refusal.question) if isinstance(refusal, GuardingPredicate) else ""
        if not _names_in(question) & batch_sizes(opened):
            return
        at = f" ({where})" if where else ""
        message = (
            f"op {op.name}: supports_args of provider {impl.provider}{at} asks for the size of the batch:"
            f" {question}. This graph is for one size; a call with another compiles one for all sizes, and that"
            " raises BatchGuard. Look at dtypes, trailing sizes and strides only, or compile with dynamic=False."
        )
        runtime.current().board(op).ledger.warn_once(impl.provider, "asks for the size of the batch", message)

    def _refused(self, op: IrOp, candidate: Candidate, refusal: Unsupported) -> None:
        """Record a refusal, and raise or warn where somebody counted on the candidate."""
        provider, reason = candidate.entry.provider, refusal.reason
        broken = isinstance(refusal, BrokenPredicate)
        if self._plan.strict and broken:
            raise PredicateFailed(op=op.name, provider=provider, reason=reason)
        if self._plan.strict and candidate.entry.required:
            raise RefusedArguments(op=op.name, provider=provider, reason=reason, layer=candidate.entry.source)
        self._count(op.name, provider, reason)
        if broken or candidate.entry.required:
            self._warn(op.name, provider, reason)

    def _count(self, op: str, provider: str, reason: str) -> None:
        """Count one refusal."""
        key = (op, provider, reason)
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def _warn(self, op: str, provider: str, reason: str) -> None:
        """Warn the first time in this process that a provider gives a reason in a graph."""
        message = f"op {op}: provider {provider} refuses in a graph: {reason}. The next one takes the call."
        runtime.current().board(self._plan.ops[op]).ledger.warn_once(provider, reason, message)


def _names_in(question: str) -> frozenset[str]:
    """Return the names in a question about sizes."""
    return frozenset(re.findall(r"[A-Za-z_]\w*", question))


def _opened(value: Any, batches: Collection[int], sizes: torch_sizes.OpenBatches) -> Any:
    """Return an argument with its first size open where that is a batch's; lists stay as they are."""
    import torch

    if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] in batches:
        return sizes.open(value)
    return value


def _open_sizes(args: Sequence[Any]) -> frozenset[str]:
    """Return the names of all sizes that a graph leaves open."""
    tensors = tensors_of(tuple(args))
    return frozenset(name for tensor in tensors for size in tensor.shape for name in torch_version.symbols_of(size))


def batch_sizes(args: Sequence[Any]) -> frozenset[str]:
    """Return the names of the sizes that change from call to call: those that are nobody's trailing size."""
    leading: set[str] = set()
    trailing: set[str] = set()
    for tensor in tensors_of(tuple(args)):
        for place, size in enumerate(tensor.shape):
            symbols = torch_version.symbols_of(size)
            (trailing if place == tensor.dim() - 1 else leading).update(symbols)
    return frozenset(leading - trailing)
