"""From wishes to candidates: what stands at each place of an op's order, and whether it can run anything here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.dispatch import Candidate
from vllm_ir.errors import (
    CalledWhileLoading,
    LockMismatch,
    NoParts,
    ProviderLacksOp,
    UnknownProvider,
    UnusableProvider,
    changed_order,
)
from vllm_ir.names import NATIVE, UNFUSED
from vllm_ir.priority import Layer, Wish, merge
from vllm_ir.verdict import Unsupported

NO_PARTS: Final = "the op has no parts"
"""Why an op cannot run unfused."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from vllm_ir.errors import Difference
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.landscape import Landscape
    from vllm_ir.op import IrOp
    from vllm_ir.policy import Policy
    from vllm_ir.priority import Entry
    from vllm_ir.registry import Registry


def defaults(landscape: Landscape, op: str, *, compiling: bool) -> list[Wish]:
    """Return what platform and distributions want for an op.

    On the built-in platforms Inductor fuses native better than any kernel that it cannot see into, so native goes
    first there when Inductor compiles.
    """
    wishes = [
        Wish(Layer.PROVIDER_DEFAULT, tuple(landscape.provider_defaults.get(compiling, {}).get(op, ()))),
        Wish(Layer.PLATFORM_DEFAULT, tuple(landscape.platform_defaults.get(compiling, {}).get(op, ()))),
    ]
    platform = landscape.platform
    if compiling and (platform is None or platform.native_first_when_compiling):
        wishes.append(Wish(Layer.PLATFORM_DEFAULT, (NATIVE,)))
    return wishes


def candidates(
    op: IrOp,
    wishes: Iterable[Wish],
    landscape: Landscape,
    policy: Policy,
    order_of: Callable[[IrOp], Sequence[Candidate]],
) -> tuple[Candidate, ...]:
    """Return every place of the order with its implementation, or with the reason why it can run nothing.

    Args:
        op: the op.
        wishes: what all layers want.
        landscape: what discovery found.
        policy: who may run what.
        order_of: the order of another op, asked of the parts of one that may run unfused.
    """
    return tuple(_candidate(op, entry, landscape, policy, order_of) for entry in merge(wishes).entries)


def refuse(impl: IrOpImpl, policy: Policy) -> Unsupported | None:
    """Return why an implementation may run no call at all here, or None where it may run some."""
    if impl.supported is not True:
        if isinstance(impl.supported, Unsupported):
            return impl.supported
        return Unsupported("it was registered as not supported on this platform")
    denied = policy.refuse(impl.provider, impl.distribution, impl.op_name)
    if denied is not None:
        return Unsupported(str(denied))
    if impl.composition is not None:
        return None  # it is what its parts are, and which of theirs may run is asked of each
    reason = policy.refuse_variant(batch_invariant=impl.batch_invariant)
    return None if reason is None else Unsupported(reason)


def refuse_parts(
    op: IrOp, impl: IrOpImpl, policy: Policy, order_of: Callable[[IrOp], Sequence[Candidate]]
) -> Unsupported | None:
    """Return why the parts that an implementation runs cannot all run here, or None where they may.

    Native takes every call of a part, so only a rule that refuses native leaves a part without anybody.
    """
    if impl.composition is None or not policy.batch_invariant:
        return None
    for part in op.declaration.parts:
        order = order_of(part)
        if all(candidate.refusal is not None for candidate in order):
            refusals = [(candidate.entry.provider, str(candidate.refusal)) for candidate in order]
            return Unsupported(nobody_for(part.name, refusals))
    return None


def nobody_for(part: str, refusals: Sequence[tuple[str, str]]) -> str:
    """Return the reason of an op in parts of which one may be run by nobody.

    Args:
        part: its name.
        refusals: each provider of its order with the reason.
    """
    return f"nothing may run its part {part} ({'; '.join(f'{provider}: {reason}' for provider, reason in refusals)})"


def _candidate(
    op: IrOp, entry: Entry, landscape: Landscape, policy: Policy, order_of: Callable[[IrOp], Sequence[Candidate]]
) -> Candidate:
    """Return what stands at one place."""
    impl = op.impls.get(entry.provider)
    if impl is None:
        reason = landscape.unusable.get(entry.provider)
        if entry.provider == UNFUSED:
            reason = NO_PARTS
        if reason is None:
            known = entry.provider in landscape.distributions
            reason = f"it has no implementation of {op.name}" if known else "it is not installed"
        return Candidate(entry, None, Unsupported(reason))
    refusal = refuse(impl, policy)
    return Candidate(entry, impl, refuse_parts(op, impl, policy, order_of) if refusal is None else refusal)


def check(
    op: IrOp, found: Sequence[Candidate], landscape: Landscape, registry: Registry, *, loading: bool = False
) -> None:
    """Raise for the first place that a user asked for and that can run nothing here.

    Args:
        op: the op.
        found: its order.
        landscape: what discovery found.
        registry: all ops.
        loading: whether discovery is still going on, so that more providers may come.

    Raises:
        NoParts: the op has no parts that could run unfused.
        UnusableProvider: it is installed, or registered, but cannot run here.
        ProviderLacksOp: it is here, but without this op.
        CalledWhileLoading: it may still come.
        UnknownProvider: nobody provides that name.
    """
    for candidate in found:
        entry, refusal = candidate.entry, candidate.refusal
        if refusal is None or not entry.required:
            continue
        provider, layer = entry.provider, entry.source
        if candidate.impl is None and provider == UNFUSED:
            raise NoParts(op=op.name, has=[other.name for other in registry if other.declaration.parts], layer=layer)
        if candidate.impl is not None or provider in landscape.unusable:
            raise UnusableProvider(op=op.name, provider=provider, reason=refusal.reason, layer=layer)
        has = tuple(other.name for other in registry if provider in other.impls)
        if has:
            raise ProviderLacksOp(op=op.name, provider=provider, has=has, layer=layer)
        if loading:
            raise CalledWhileLoading(op=op.name, provider=provider, layer=layer)
        known = dict.fromkeys([*op.impls, *landscape.unusable])
        raise UnknownProvider(op=op.name, provider=provider, known=tuple(known), layer=layer)


def check_providers(
    names: Sequence[str], layer: str, landscape: Landscape, registry: Registry, *, loading: bool = False
) -> None:
    """Raise for the first provider, named for every op at once, that can run none.

    Args:
        names: the providers.
        layer: who named them, in words.
        landscape: what discovery found.
        registry: all ops.
        loading: whether discovery is still going on, so that more providers may come.

    Raises:
        UnusableProvider: it is installed, but cannot run here.
        CalledWhileLoading: it may still come.
        UnknownProvider: nobody provides that name.
    """
    known = tuple(dict.fromkeys([*(name for op in registry for name in op.impls), *landscape.distributions]))
    for name in names:
        if name in known:
            continue
        if name in landscape.unusable:
            raise UnusableProvider(op=None, provider=name, reason=landscape.unusable[name], layer=layer)
        if loading:
            raise CalledWhileLoading(op=None, provider=name, layer=layer)
        raise UnknownProvider(op=None, provider=name, known=(*known, *landscape.unusable), layer=layer)


def reachable(found: Sequence[Candidate]) -> list[str]:
    """Return the providers that may be reached: usable ones up to the first that takes every call."""
    providers: list[str] = []
    for candidate in found:
        if candidate.refusal is None:
            providers.append(candidate.entry.provider)
            if candidate.unconditional:
                break
    return providers


def unpinned(
    op: IrOp, found: Sequence[Candidate], landscape: Landscape, *, compiling: bool = False
) -> Difference | None:
    """Return in what an order differs from the one that a lock holds the process to, or None.

    Args:
        op: the op.
        found: its order, from all layers.
        landscape: what discovery found, and what is locked.
        compiling: whether the order is for graphs that Inductor compiles.
    """
    locked = None if landscape.pins is None else landscape.pins.orders.get((op.name, compiling))
    if locked is None:
        return None
    # What stands behind native is never reached, so a lock does not say it.
    names = [candidate.entry.provider for candidate in found if candidate.refusal is None]
    if NATIVE in names:
        names = names[: names.index(NATIVE) + 1]
    if tuple(names) == locked:
        return None
    return changed_order(op.name, "compiling" if compiling else "eager", locked, names)


def check_pinned(op: IrOp, found: Sequence[Candidate], landscape: Landscape, *, compiling: bool = False) -> None:
    """Raise where an order is not the one that a lock holds the process to.

    Raises:
        LockMismatch: it is not.
    """
    difference = unpinned(op, found, landscape, compiling=compiling)
    if difference is not None and landscape.pins is not None:
        raise LockMismatch(file=landscape.pins.file, differences=[str(difference)])
