"""Which providers an op of vLLM tries by default: what vLLM-IR's layers say, then what vLLM says.

The order is the one of vllm-ir: what an operator wrote into a file or a variable, an out-of-tree platform's wish, the
distributions by rank; vLLM's own providers follow, and `native`. What a user tells vLLM itself goes before all of it,
because vLLM appends its defaults to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.names import NATIVE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from vllm_ir.op import IrOp
    from vllm_ir.runtime import Runtime


def default_order(
    op: IrOp, vllm_default: Sequence[str], registered: Collection[str], state: Runtime, *, compiling: bool
) -> list[str]:
    """Return the providers of one op in the order in which vLLM is to try them where its user says nothing.

    Args:
        op: the op as vllm-ir has it.
        vllm_default: what vLLM tries by default.
        registered: the providers that vLLM's op has an implementation of.
        state: of this process, with providers loaded.
        compiling: whether Inductor compiles; on the built-in platforms `native` goes before defaults then.

    Raises:
        ConfigurationError: a layer names what does not exist or cannot run.
    """
    candidates = state.candidates(op, compiling=compiling)
    state.check(op, candidates)
    order: list[str] = []
    for candidate in candidates:
        provider = candidate.entry.provider
        if provider == NATIVE:
            # One that nobody asked for says no more than vLLM's own list does, which has its own providers, too.
            if candidate.entry.required:
                order.append(provider)
            break
        if candidate.refusal is None and provider in registered:
            order.append(provider)
    return list(dict.fromkeys([*order, *vllm_default]))
