"""From the candidates of an order to the chains that calls run: one per overload, for eager calls and for tracers.

Which order holds where is known to the switchboard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.chain import Step, make_chain, make_plain_chain
from vllm_ir.dispatch import foreign
from vllm_ir.names import NATIVE
from vllm_ir.observation import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.declaration import OpDeclaration
    from vllm_ir.dispatch import Candidate
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.observation import Ledger
    from vllm_ir.priority import Entry


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
        plain_default: `default` for tracers where the torch op is not wanted.
        plain_inplace: `inplace` likewise.
        native_only: whether native takes every call.
    """

    default: Callable[..., Any]
    inplace: Callable[..., Any]
    plain_default: Callable[..., Any]
    plain_inplace: Callable[..., Any]
    native_only: bool


def make_chains(
    declaration: OpDeclaration,
    ledger: Ledger,
    candidates: Sequence[Candidate],
    mode: Mode,
    exhausted: Callable[..., Any],
) -> Chains:
    """Return the chains of an order.

    Args:
        declaration: the op.
        ledger: where its counts and refusals are kept.
        candidates: in order; those that may run no call are left out.
        mode: what holds for every chain.
        exhausted: called with the arguments when every candidate refused; raises.
    """
    name, names = declaration.name, declaration.signature.names
    usable = [(c.entry, c.impl) for c in candidates if c.impl is not None and c.refusal is None]
    functional = [_step(declaration, ledger, entry, impl, mode, copies=True) for entry, impl in usable]
    donating = [_step(declaration, ledger, entry, impl, mode, copies=False) for entry, impl in usable]
    return Chains(
        default=make_chain(name, names, functional, exhausted),
        inplace=make_chain(name, names, donating, exhausted),
        plain_default=make_plain_chain(name, names, functional, exhausted),
        plain_inplace=make_plain_chain(name, names, donating, exhausted),
        native_only=bool(usable) and usable[0][0].provider == NATIVE and not mode.counters and not mode.trace,
    )


def _step(
    declaration: OpDeclaration, ledger: Ledger, entry: Entry, impl: IrOpImpl, mode: Mode, *, copies: bool
) -> Step:
    """Return an implementation as a chain sees it; `copies` where its inputs must not change."""
    functional = impl.functional if copies else None
    witness = Witness(ledger, entry, strict=mode.strict, trace=mode.trace, counters=mode.counters)
    return Step(
        function=impl.impl_fn if functional is None else functional,
        predicate=impl.predicate,
        device=_device_test(declaration, impl.devices, mode),
        foreign=lambda *args: foreign(impl, args),
        copied=declaration.activations if copies and impl.inplace and functional is None else (),
        refused=witness.refused,
        raised=witness.raised,
        counted=witness.counted() if mode.counters or mode.trace else None,
        told=witness.told,
        seen=witness.seen if entry.required or mode.counters or mode.trace else None,
    )


def _device_test(declaration: OpDeclaration, devices: frozenset[str] | None, mode: Mode) -> str | None:
    """Return the test that every tensor is on one of some devices, or None where it cannot be elsewhere."""
    # On a machine whose only device is the CPU no tensor can be elsewhere: those on "meta" never come here.
    if devices is None or (mode.device_type == "cpu" and "cpu" in devices):
        return None
    tests: list[str] = []
    for name, kind in zip(declaration.signature.names, declaration.types.kinds, strict=True):
        there = " or ".join(f"{name}.{_device_attribute(device)}" for device in sorted(devices))
        if kind == "tensor":
            tests.append(f"({there})")
        elif kind == "optional tensor":
            tests.append(f"({name} is None or {there})")
    return " and ".join(tests) or None


def _device_attribute(device_type: str) -> str:
    """Return what is true of a tensor on a device; `device.type`, which every backend has, costs ten times a flag."""
    known = {"cpu": "is_cpu", "cuda": "is_cuda", "xpu": "is_xpu", "mps": "is_mps"}
    return known.get(device_type, f"device.type == {device_type!r}")
