"""The active chains of one op: for the process, and for each scope that is open.

While some context can still see a scope, calls read the context first; afterwards they do not pay for it.
What the candidates are is decided above.
"""

from __future__ import annotations

import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.call_path import CallPath
from vllm_ir.chain import Step, make_chain, make_plain_chain
from vllm_ir.dispatch import foreign
from vllm_ir.names import NATIVE
from vllm_ir.observation import Ledger, Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.dispatch import Candidate
    from vllm_ir.op import IrOp
    from vllm_ir.priority import Wish


@dataclass(frozen=True, slots=True)
class Mode:
    """What holds for every chain that is made.

    Attributes:
        strict: raise where a refusal would fall back.
        counters: count calls and refusals.
        trace: log calls and refusals.
        device_type: the platform's torch device type.
    """

    strict: bool = False
    counters: bool = False
    trace: bool = False
    device_type: str = "cpu"


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of one order.

    Attributes:
        default: for the functional overload.
        inplace: for `maybe_inplace`.
        plain: `default` for Dynamo where the torch op is not wanted.
        plain_inplace: `inplace` likewise.
        native_only: whether native takes every call.
    """

    default: Callable[..., Any]
    inplace: Callable[..., Any]
    plain: Callable[..., Any]
    plain_inplace: Callable[..., Any]
    native_only: bool


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
    ) -> None:
        self.op = op
        self.ledger = Ledger(op.name)
        self.binding: object = None
        self.scope: ContextVar[Scope | None] = ContextVar(f"vllm_ir.{op.name}", default=None)
        self._scopes: weakref.WeakSet[Scope] = weakref.WeakSet()
        self._warm = warm
        self._exhausted = exhausted
        self._chains: Chains | None = None
        declaration = op.declaration
        self.default = CallPath(op.name, declaration.signature, declaration.types, self._cold, failed)
        self.inplace = (
            CallPath(op.name, declaration.signature, declaration.types, self._cold_inplace, failed)
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
        return tuple(self._scopes)

    def cool(self) -> None:
        """Let the next call ask for chains again."""
        self._chains = None
        self.default.cool()
        if self.inplace is not None:
            self.inplace.cool()

    def connect(self, chains: Chains) -> None:
        """Let calls run these chains where no scope is open."""
        self._chains = chains
        self._switch()

    def open(self, scope: Scope) -> None:
        """Let calls read the context from now on."""
        self._scopes.add(scope)
        self._switch()
        self.scope.set(scope)

    def leave(self, scope: Scope) -> None:
        """Let the current context go back to the scope around one.

        A token of the context variable would not do: generators may close scopes in another order than they opened
        them, or in another context, and the token would then bring a closed scope back, or raise.
        """
        found = self.scope.get()
        if found is not scope:
            scope.passed = True
            return
        found = scope.outer
        while found is not None and found.passed:
            found = found.outer
        self.scope.set(found)

    def close(self) -> None:
        """Stop reading the context if no context can see a scope any more; a task may have outlived its scope."""
        self._switch()

    def make(self, candidates: Sequence[Candidate], mode: Mode) -> Chains:
        """Return the chains of an order.

        Args:
            candidates: in order; those that may run no call are left out.
            mode: what holds for every chain.
        """
        declaration = self.op.declaration
        names = declaration.signature.names
        usable = [c for c in candidates if c.impl is not None and c.refusal is None]
        functional = [self._step(c, mode, copies=True) for c in usable]
        donating = [self._step(c, mode, copies=False) for c in usable]
        native_only = bool(usable) and usable[0].entry.provider == NATIVE and not mode.counters and not mode.trace
        name = self.op.name
        return Chains(
            default=make_chain(name, names, functional, self._exhausted),
            inplace=make_chain(name, names, donating, self._exhausted),
            plain=make_plain_chain(name, names, functional, self._exhausted),
            plain_inplace=make_plain_chain(name, names, donating, self._exhausted),
            native_only=native_only,
        )

    def _step(self, candidate: Candidate, mode: Mode, *, copies: bool) -> Step:
        """Return a candidate as a chain sees it."""
        impl = candidate.impl
        if impl is None:
            msg = "a candidate without implementation reached a chain"
            raise ValueError(msg)
        witness = Witness(self.ledger, candidate.entry, strict=mode.strict, trace=mode.trace, counters=mode.counters)
        return Step(
            function=impl.impl_fn,
            predicate=impl.predicate,
            device=self._device_test(impl.devices, mode),
            foreign=lambda *args: foreign(impl, args),
            copied=self.op.declaration.activations if copies and impl.inplace else (),
            refused=witness.refused,
            raised=witness.raised,
            counted=witness.counted() if mode.counters or mode.trace else None,
            seen=witness.seen if candidate.entry.required or mode.counters or mode.trace else None,
        )

    def _device_test(self, devices: frozenset[str] | None, mode: Mode) -> str | None:
        """Return the test that every tensor is on one of some devices, or None where it cannot be elsewhere."""
        # On a machine whose only device is the CPU no tensor can be elsewhere: those on "meta" never come here.
        if devices is None or (mode.device_type == "cpu" and "cpu" in devices):
            return None
        tests: list[str] = []
        declaration = self.op.declaration
        for name, kind in zip(declaration.signature.names, declaration.types.kinds, strict=True):
            there = " or ".join(f"{name}.{_device_attribute(device)}" for device in sorted(devices))
            if kind == "tensor":
                tests.append(f"({there})")
            elif kind == "optional tensor":
                tests.append(f"({name} is None or {there})")
        return " and ".join(tests) or None

    def _switch(self) -> None:
        """Set what calls run, by what is connected and which scopes are alive."""
        chains = self._chains
        if chains is None:
            return
        native = self.op.declaration.native if chains.native_only and not self._scopes else None
        if not self._scopes:
            self.default.switch(chains.default, plain=chains.plain, differentiable=native)
            if self.inplace is not None:
                self.inplace.switch(
                    chains.inplace, plain=chains.plain_inplace, differentiable=native or self.op.torch_op
                )
            return
        read = self.scope.get

        def scoped(*args: Any) -> Any:
            """Run the chain of the current context."""
            found = read()
            return (chains if found is None else found.chains).default(*args)

        def scoped_inplace(*args: Any) -> Any:
            """Run the in-place chain of the current context."""
            found = read()
            return (chains if found is None else found.chains).inplace(*args)

        self.default.switch(scoped, plain=chains.plain, differentiable=None)
        if self.inplace is not None:
            self.inplace.switch(scoped_inplace, plain=chains.plain_inplace, differentiable=self.op.torch_op)

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


def _device_attribute(device_type: str) -> str:
    """Return what is true of a tensor on a device; `device.type`, which every backend has, costs ten times a flag."""
    known = {"cpu": "is_cpu", "cuda": "is_cuda", "xpu": "is_xpu", "mps": "is_mps"}
    return known.get(device_type, f"device.type == {device_type!r}")
