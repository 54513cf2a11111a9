"""Attention in a graph as in eager: the shapes that torch's kernel is given, and with them the order of its sums.

With a mask and one query, Transformers groups the queries of a key's heads into one matrix in eager, and repeats keys
and values instead while a compiler looks on. Both are right, their sums are made in another order, and the second
copies the whole cache for each token. While a model is compiled by us, its attention asks no compiler.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import Unsupported

from vllm_ir_host_transformers import instance, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

NAME: Final = "ALL_ATTENTION_FUNCTIONS"
"""The global name by which modelling files find the function that attends."""

QUESTION: Final = "is_torchdynamo_compiling"
"""The global name of what the function asks."""


@contextlib.contextmanager
def as_in_eager(model: nn.Module) -> Iterator[None]:
    """Let the attentions of a model attend in a graph as they do in eager, while open."""
    before: list[tuple[nn.Module, Any]] = []
    copies: dict[Any, Callable[..., Any] | None] = {}
    try:
        for module in model.modules():
            function = getattr(module.forward, "__func__", None)
            own = function is type(module).forward or instance.is_ours(module.forward)
            if own and function not in copies:
                copies[function] = _copy(function)
            copy = copies.get(function) if own else None
            if copy is not None:
                before.append((module, module.__dict__.get(instance.FORWARD)))
                instance.put(module, copy)
        yield
    finally:
        for module, forward in before:
            if forward is None:
                del module.__dict__[instance.FORWARD]
            else:
                module.__dict__[instance.FORWARD] = forward


def _copy(forward: Any) -> Callable[..., Any] | None:
    """Return a copy of a forward whose attention asks no compiler; None for one that does not attend, or asks none."""
    found = rewrite.unwrap(forward)
    if isinstance(found, Unsupported):
        return None
    inner = found[1]
    registry = inner.__globals__.get(NAME) if NAME in inner.__code__.co_names else None
    if registry is None or "sdpa" not in registry:
        return None
    attend = _incurious(registry["sdpa"])
    if attend is None:
        return None
    ours = type(registry)()
    for name in registry:
        ours[name] = registry[name]
    ours["sdpa"] = attend
    return rewrite.rebuild(*found, {NAME: ours})


def _incurious(attend: Any) -> Callable[..., Any] | None:
    """Return a copy of an attention function for which nobody compiles; None for one that does not ask."""
    found = rewrite.unwrap(attend)
    if isinstance(found, Unsupported) or QUESTION not in found[1].__code__.co_names:
        return None
    return rewrite.rebuild(*found, {QUESTION: _nobody_compiles})


def _nobody_compiles() -> bool:
    """Return what the question is answered with in eager."""
    return False
