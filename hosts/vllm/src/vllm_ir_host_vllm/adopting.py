"""Adopt mode: what providers implement is registered on vLLM's own ops, and vLLM selects among all of it.

Which order it selects in is vLLM's configuration, with the defaults of `defaults`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir import orders
from vllm_ir.names import NATIVE, RESERVED

from vllm_ir_host_vllm.adapters import adapt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir import IrOpImpl
    from vllm_ir.runtime import Runtime


@dataclass(slots=True)
class Adoption:
    """What became of the implementations of providers in vLLM's ops.

    Attributes:
        offered: vLLM's ops that implementations could be registered on.
        adopted: the providers that were registered, by op.
        taken: op and provider where vLLM has an implementation of that name itself, which stays.
        left: op, provider and why it was not registered.
    """

    offered: list[str] = field(default_factory=list)
    adopted: dict[str, list[str]] = field(default_factory=dict)
    taken: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str, str]] = field(default_factory=list)

    def reason(self, op: str, provider: str) -> str | None:
        """Return why a provider was not registered for an op, or None where nothing is known of it."""
        return next((why for name, who, why in self.left if (name, who) == (op, provider)), None)


def adopt(vllm_ops: Mapping[str, Any], state: Runtime) -> Adoption:
    """Register every implementation that can run here on vLLM's op of the same name; none of vLLM's is touched.

    Args:
        vllm_ops: vLLM's ops by name, with its own implementations imported already.
        state: of this process, with providers loaded.
    """
    done = Adoption()
    for name, target in vllm_ops.items():
        if name not in state.registry:
            continue
        done.offered.append(name)
        op = state.registry.get(name)
        for provider, impl in op.impls.items():
            if provider in RESERVED:
                continue
            if provider in target.impls:
                done.taken.append((name, provider))
                continue
            refusal = orders.refuse(impl, state.policy)
            count = state.board(op).ledger.calls_of(provider).raise_by_one if state.counting else None
            reason = str(refusal) if refusal is not None else _register(target, impl, count)
            if reason is None:
                done.adopted.setdefault(name, []).append(provider)
            else:
                done.left.append((name, provider, reason))
    return done


def _register(target: Any, impl: IrOpImpl, count: Callable[[], object] | None) -> str | None:
    """Register one implementation on one of vLLM's ops; return why that is not possible, or None."""
    adapted = adapt(impl, target.impls[NATIVE].impl_fn, count)
    inplace = impl.inplace and bool(target.allow_inplace)
    register = target.register_impl(impl.provider, supports_args=adapted.accepts, inplace=inplace)
    try:
        made = register(adapted.run if inplace else adapted.functional)
    except ValueError as error:  # the op of that name has another signature here
        return " ".join(str(error).split())
    # vLLM's own would hash the file of the function, which is this package's, and copy what need not be copied.
    made.uuid = lambda: adapted.digest
    made.func_impl_fn = adapted.functional
    return None
