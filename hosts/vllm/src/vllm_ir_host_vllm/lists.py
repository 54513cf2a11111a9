"""The priority lists of vLLM's own configuration, held against what there is: a name that cannot run is an error.

vLLM itself ends with a KeyError, or leaves a provider out without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.errors import ProviderLacksOp
from vllm_ir.log import logger

from vllm_ir_host_vllm.errors import ListOfAnotherMode, UnknownVllmProvider

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir.runtime import Runtime

    from vllm_ir_host_vllm.adopting import Adoption


def check(
    lists: Mapping[str, Sequence[str]], vllm_ops: Mapping[str, Any], state: Runtime, adoption: Adoption | None
) -> None:
    """Raise for the first provider in vLLM's lists that its op has no implementation of.

    One of vLLM's own that is not supported here is left out by vLLM; that is said, and stays so.

    Args:
        lists: provider names by op.
        vllm_ops: vLLM's ops by name.
        state: of this process, with providers loaded.
        adoption: what became of providers in vLLM's ops; None in layer mode.

    Raises:
        ListOfAnotherMode: it is one of ours, and layers are replaced.
        ProviderLacksOp: it is installed, but has no implementation of that op.
        UnknownVllmProvider: it is not installed, or cannot run here.
    """
    for op, providers in lists.items():
        impls = vllm_ops[op].impls if op in vllm_ops else {}
        for provider in providers:
            if provider in impls:
                if not impls[provider].supported:
                    logger.warning("--ir-op-priority.%s: vLLM leaves out %r, which cannot run here", op, provider)
                continue
            _refuse(op, provider, list(impls), state, adoption)


def _refuse(op: str, provider: str, known: list[str], state: Runtime, adoption: Adoption | None) -> None:
    """Raise the error that says why vLLM's op has no such implementation."""
    has = tuple(other.name for other in state.registry if provider in other.impls)
    if adoption is None and op in has:
        raise ListOfAnotherMode(op=op, provider=provider)
    reason = state.landscape.unusable.get(provider)
    if reason is None and adoption is not None:
        reason = adoption.reason(op, provider)
    if has and op not in has and reason is None:
        raise ProviderLacksOp(op=op, provider=provider, has=has, layer=f"--ir-op-priority.{op}")
    raise UnknownVllmProvider(op=op, provider=provider, known=known, reason=reason)
