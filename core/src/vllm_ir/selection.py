"""What an op asks: who runs a call and why, what the order is, and what is to go first."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_ir import dispatch, orders
from vllm_ir.names import UNFUSED
from vllm_ir.priority import Layer, Wish, read_providers
from vllm_ir.runtime import find
from vllm_ir.switchboard import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vllm_ir.dispatch import Candidate
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.runtime import Runtime
    from vllm_ir.verdict import Explanation


class Selection:
    """Answers for every op of a process.

    Args:
        runtime: the state of the process.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def finder(self) -> Callable[[str], IrOp]:
        """The function by which a pickled op is found again."""
        return find

    def dispatch(self, op: IrOp, args: Sequence[Any]) -> IrOpImpl:
        """Return the implementation that runs a call in the current context."""
        candidates = self._checked(op)
        policy = self._runtime.policy
        return dispatch.select(op.name, candidates, args, batch_invariant=policy.batch_invariant, strict=policy.strict)

    def explain(self, op: IrOp, args: Sequence[Any] | None, *, compiling: bool) -> Explanation:
        """Return the verdict on every candidate in the current context."""
        self._runtime.load()
        candidates = self._runtime.candidates(op, self._runtime.current_wishes(op), compiling=compiling)
        named = {candidate.entry.provider for candidate in candidates}
        policy = self._runtime.policy
        others = [
            (provider, orders.refuse(impl, policy)) for provider, impl in op.impls.items() if provider not in named
        ]
        told = dispatch.explain(op.name, candidates, others, args, compiling=compiling, strict=policy.strict)
        if told.selected == UNFUSED:
            calls = _part_calls(op, args)
            told = replace(told, parts=tuple(self.explain(part, given, compiling=compiling) for part, given in calls))
        pins = self._runtime.landscape.pins
        difference = orders.unpinned(op, candidates, self._runtime.landscape, compiling=compiling)
        if pins is None or difference is None:
            return told
        # Nobody runs from an order that is not the locked one: the call raises, so nobody is accepted here.
        reason = f"VLLM_IR_LOCK={pins.file} locks {difference.locked}, and this order is another: a call stops"
        stopped = (
            replace(each, accepted=False, selected=False, reason=reason) if each.accepted else each
            for each in told.verdicts
        )
        return replace(told, verdicts=tuple(stopped), parts=())

    def priority(self, op: IrOp) -> list[str]:
        """Return the providers that may be reached in the current context."""
        return orders.reachable(self._checked(op))

    def _checked(self, op: IrOp) -> tuple[Candidate, ...]:
        """Return the order of the current context; what a layer asks for in vain raises here as in a call."""
        self._runtime.load()
        self._runtime.check_names()
        candidates = self._runtime.candidates(op, self._runtime.current_wishes(op))
        self._runtime.check(op, candidates)
        orders.check_pinned(op, candidates, self._runtime.landscape)
        return candidates

    def set_default(self, op: IrOp, providers: str | Sequence[str]) -> None:
        """Put providers first for the whole process."""
        self._runtime.load()
        wish = Wish(Layer.SET_DEFAULT, read_providers(providers, Layer.SET_DEFAULT.label))
        with self._runtime.lock:
            self._runtime.check_wish(op, wish)
            self._runtime.preferences.put(op.name, wish)
            self._runtime.refresh(op)

    @contextlib.contextmanager
    def set_priority(self, op: IrOp, providers: str | Sequence[str], *, for_every_op: bool = False) -> Iterator[None]:
        """Put providers first in the current context while open."""
        self._runtime.load()
        wish = Wish(Layer.SET_PRIORITY, read_providers(providers, Layer.SET_PRIORITY.label), for_every_op=for_every_op)
        board = self._runtime.board(op)
        with self._runtime.lock:
            self._runtime.check_wish(op, wish)
            wishes = (*self._runtime.current_wishes(op), wish)
            candidates = self._runtime.candidates(op, wishes)
            orders.check_pinned(op, candidates, self._runtime.landscape)
            chains = board.make(candidates, self._runtime.mode)
            scope = Scope(wishes, chains, board.scope.get())
            if not board.warmed:
                self._runtime.warm(op)
            board.open(scope)
        try:
            yield
        finally:
            board.leave(scope)
            # The board asks which scopes are alive, and this name would keep this one so.
            del scope
            with self._runtime.lock:
                board.close()


def _part_calls(op: IrOp, args: Sequence[Any] | None) -> list[tuple[IrOp, tuple[Any, ...] | None]]:
    """Return which parts a call of an op makes when it runs unfused, each with its arguments, if there are any.

    What the parts are given is worked out on fake tensors, so nothing is computed.
    """
    composition, parts = op.declaration.composition, {part.name: part for part in op.declaration.parts}
    if composition is None or args is None:
        return [(part, None) for part in parts.values()]
    import torch
    from torch._subclasses import FakeTensor, FakeTensorMode

    fakes = [value.fake_mode for value in args if isinstance(value, FakeTensor)]
    with fakes[0] if fakes else FakeTensorMode() as mode:
        given = [mode.from_tensor(v) if isinstance(v, torch.Tensor) and not fakes else v for v in args]
        return [(parts[name], bound) for name, bound in composition.calls(given)]
