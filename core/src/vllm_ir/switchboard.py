"""The active chains of one op: for the process, and for each scope that is open.

While some context can still see a scope, calls read the context first; afterwards they do not pay for it.
What the candidates are is decided above.
"""

from __future__ import annotations

import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from vllm_ir.assembly import make_chains
from vllm_ir.call_path import CallPath
from vllm_ir.observation import Ledger
from vllm_ir.scopes import leave

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.assembly import Chains, Mode
    from vllm_ir.changes import Changes
    from vllm_ir.dispatch import Candidate
    from vllm_ir.op import IrOp
    from vllm_ir.priority import Wish


class Scope:
    """A priority that is open in some contexts.

    Attributes:
        wishes: what it wants, behind what the scopes around it want.
        chains: what follows; made anew when an implementation is registered.
        outer: the scope around it, or None.
        passed: it was closed before a scope inside it was; the context goes back to the one around it.
    """

    __slots__ = ("__weakref__", "chains", "outer", "passed", "wishes")

    def __init__(self, wishes: tuple[Wish, ...], chains: Chains, outer: Scope | None) -> None:
        self.wishes = wishes
        self.chains = chains
        self.outer = outer
        self.passed = False


class Switchboard:
    """Connects the calls of one op to the chains that hold for them.

    Args:
        op: the op.
        warm: called before the first call, and after every `cool`; connects chains.
        failed: called with what a chain raised and the call's arguments.
        exhausted: called with the arguments when every candidate refused; raises.
        changes: is told which scopes are open.

    Attributes:
        binding: what torch holds of the op; it lives as long as the board.
        ledger: the op's counts and refusals.
        scope: the scope of the current context.
        default: the way of a functional call.
        inplace: the way of a donating call, or None.
    """

    def __init__(
        self,
        op: IrOp,
        warm: Callable[[IrOp], None],
        failed: Callable[..., None],
        exhausted: Callable[..., Any],
        changes: Changes,
    ) -> None:
        self.op = op
        self._changes = changes
        self.ledger = Ledger(op.name)
        self.binding: object = None
        self.scope: ContextVar[Scope | None] = ContextVar(f"vllm_ir.{op.name}", default=None)
        # A plain set of references, not a WeakSet, because calls ask whether it is empty.
        self._alive: set[weakref.ref[Scope]] = set()
        self._lock = threading.RLock()
        self._warm = warm
        self._exhausted = exhausted
        self._chains: Chains | None = None
        declaration = op.declaration
        read = (op.name, declaration.signature, declaration.types)
        self.default = CallPath(*read, self._cold, failed, lambda: warm(op))
        self.inplace = (
            CallPath(*read, self._cold_inplace, failed, lambda: warm(op), declaration.activations)
            if op.allow_inplace
            else None
        )

    @property
    def warmed(self) -> bool:
        """Whether chains are connected."""
        return self._chains is not None

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes that some context can still see."""
        return tuple(scope for scope in (alive() for alive in self._alive.copy()) if scope is not None)

    def cool(self) -> None:
        """Let the next call ask for chains again."""
        with self._lock:
            self._chains = None
            self.default.cool()
            if self.inplace is not None:
                self.inplace.cool()

    def connect(self, chains: Chains) -> None:
        """Let calls run these chains where no scope is open."""
        with self._lock:
            self._chains = chains
            self._switch()

    def open(self, scope: Scope) -> None:
        """Let calls read the context from now on."""
        with self._lock:
            self._alive.add(weakref.ref(scope, self._alive.discard))
            self._changes.scopes.add(weakref.ref(scope, self._changes.scopes.discard))
            self._switch()
        self.scope.set(scope)

    def leave(self, scope: Scope) -> None:
        """Let the current context go back to the scope around one."""
        leave(self.scope, scope)

    def forget_scopes(self) -> None:
        """Stop reading the context although some may see a scope; for a test that begins with a fresh state."""
        with self._lock:
            mine = self.scopes
            self._changes.scopes -= {each for each in self._changes.scopes if each() in mine}
            self._alive.clear()
            self._switch()

    def close(self) -> None:
        """Stop reading the context if no context can see a scope any more.

        A task that outlives its scope still sees it; then the first call after the end of the task does this.
        """
        with self._lock:
            self._switch()

    def make(self, candidates: Sequence[Candidate], mode: Mode) -> Chains:
        """Return the chains of an order.

        Args:
            candidates: in order; those that may run no call are left out.
            mode: what holds for every chain.
        """
        return make_chains(self.op.declaration, self.ledger, candidates, mode, self._exhausted)

    def _switch(self) -> None:
        """Set what calls run, by what is connected and which scopes are alive."""
        chains = self._chains
        if chains is None:
            return
        if not self._alive:
            native = self.op.declaration.native if chains.native_only else None
            self.default.switch(chains.default, plain=chains.plain_default, differentiable=native)
            if self.inplace is not None:
                self.inplace.switch(
                    chains.inplace, plain=chains.plain_inplace, differentiable=native or self.op.torch_op
                )
            return
        self._scoped(self.default, chains, "default", differentiable=None)
        if self.inplace is not None:
            self._scoped(self.inplace, chains, "inplace", differentiable=self.op.torch_op)

    def _scoped(self, path: CallPath, chains: Chains, name: str, *, differentiable: Callable[..., Any] | None) -> None:
        """Let one way of calling ask the context which chains hold.

        Dynamo cannot guard on a context, so its graph gets the torch op, which asks the context at each call.

        Args:
            path: the way of calling.
            chains: those where no scope is open.
            name: which of the chains it runs.
            differentiable: what runs when a gradient is wanted.
        """
        import torch

        read, alive, close, compiling = self.scope.get, self._alive, self.close, torch.compiler.is_dynamo_compiling
        plain = f"plain_{name}"
        outside, plain_outside = getattr(chains, name), getattr(chains, plain)

        def scoped(*args: Any) -> Any:
            """Run the chain of the current context."""
            found = read()
            if found is not None:
                return getattr(found.chains, name)(*args)
            if not alive:
                close()
            return outside(*args)

        def plain_scoped(*args: Any) -> Any:
            """Run the torch op in a graph, and elsewhere the plain chain of the current context."""
            if compiling():
                return path.torch_op(*args)
            found = read()
            return (plain_outside if found is None else getattr(found.chains, plain))(*args)

        path.switch(scoped, plain=plain_scoped, differentiable=differentiable)

    def _cold(self, *args: Any) -> Any:
        """Connect chains, then run the call."""
        self._warm(self.op)
        return self._current().default(*args)

    def _cold_inplace(self, *args: Any) -> Any:
        """Connect chains, then run the donating call."""
        self._warm(self.op)
        return self._current().inplace(*args)

    def _current(self) -> Chains:
        """Return the chains that hold in the current context."""
        scope = self.scope.get()
        chains = self._chains if scope is None else scope.chains
        if chains is None:
            # Another thread cooled the board between warming and running.
            self._warm(self.op)
            return self._current()
        return chains
