"""Whether tracers see an op's torch op, or are led straight into the implementation that runs."""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from vllm_ir.scopes import leave

if TYPE_CHECKING:
    from vllm_ir.switchboard import Switchboard


class WrapScope:
    """A setting that is open in some contexts.

    Attributes:
        enabled: the setting.
        outer: the scope around it, or None.
        passed: it was closed before a scope inside it was.
    """

    __slots__ = ("__weakref__", "enabled", "outer", "passed")

    def __init__(self, *, enabled: bool, outer: WrapScope | None) -> None:
        self.enabled = enabled
        self.outer = outer
        self.passed = False


class Wrapping:
    """The setting of the process and of its contexts.

    Attributes:
        default: the setting where no scope is open.
    """

    def __init__(self) -> None:
        self.default = True
        self._scope: ContextVar[WrapScope | None] = ContextVar("vllm_ir.torch_wrap", default=None)
        self._scopes: weakref.WeakSet[WrapScope] = weakref.WeakSet()

    @property
    def always(self) -> bool:
        """Whether every call in every context shows tracers the torch op."""
        return self.default and not self._scopes

    def open(self, *, enable: bool) -> WrapScope:
        """Set it for the current context."""
        scope = WrapScope(enabled=enable, outer=self._scope.get())
        self._scopes.add(scope)
        self._scope.set(scope)
        return scope

    def close(self, scope: WrapScope) -> None:
        """Undo what `open` did."""
        leave(self._scope, scope)

    def enabled(self) -> bool:
        """Return the setting of the current context."""
        scope = self._scope.get()
        return self.default if scope is None else scope.enabled

    def apply(self, board: Switchboard) -> None:
        """Give an op and its `maybe_inplace` the call that fits.

        The class's `__call__` is set, so what Dynamo compiled under the other setting is compiled anew.
        """
        paths = [(type(board.op), board.default)]
        if board.inplace is not None:
            paths.append((type(getattr(board.op, "maybe_inplace")), board.inplace))  # noqa: B009 - not on every op
        for kind, path in paths:
            wanted = self._choose(path.entry, path.unwrapped)
            if vars(kind).get("__call__") is not wanted:
                kind.__call__ = wanted  # type: ignore[method-assign]

    def _choose(self, entry: Any, unwrapped: Any) -> Any:
        """Return the call for the setting; with scopes open, one that asks the context."""
        if not self._scopes:
            return entry if self.default else unwrapped
        import torch

        def enabled() -> bool:
            """Return the setting of the current context."""
            return self.enabled()

        # Dynamo runs this once while tracing, in the context that compiles, and takes the answer as a constant.
        torch.compiler.assume_constant_result(enabled)

        def call(op: Any, *args: Any, **kwargs: Any) -> Any:
            """Run the call that the current context asks for."""
            return entry(op, *args, **kwargs) if enabled() else unwrapped(op, *args, **kwargs)

        return call
