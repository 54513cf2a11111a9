"""What torch is tracing at the moment, and how to take part in it: the private doors that plain compilation needs.

Like `torch_version`, the only place that knows them; seen alike in torch 2.11 to 2.14 unless a function says otherwise.
"""

from __future__ import annotations

import contextlib
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._guards import TracingContext


def tracing_context() -> TracingContext | None:
    """Return what torch keeps of the graph that this thread is compiling, from Dynamo's first look to the end."""
    from torch._guards import TracingContext

    return TracingContext.try_get()


def inside_inductor() -> bool:
    """Tell whether Inductor has taken over the graph; by then torch has worked out its key."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:
        return False
    from torch._subclasses.fake_tensor import FakeTensorMode

    return isinstance(virtualized.V.fake_mode, FakeTensorMode)


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """Run something as if torch traced nothing, so that tensors made inside are real."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield


def functional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that records no write to a tensor: behind AOTAutograd's functionalization none may come."""
    from torch._subclasses.functional_tensor import dispatch_functionalize

    return dispatch_functionalize(function)


def table_of(mode: Any) -> Mapping[Any, Callable[..., Any]]:
    """Return what is taken apart by a mode that records a graph.

    From torch 2.13 on the mode has it; in 2.11 one holds for the process, in 2.12 one for the context.

    Args:
        mode: the mode.
    """
    if hasattr(mode, "decomposition_table"):
        own: Mapping[Any, Callable[..., Any]] = mode.decomposition_table
        return own
    from torch.fx.experimental import proxy_tensor

    current: Any = vars(proxy_tensor)["CURRENT_DECOMPOSITION_TABLE"]
    found: Mapping[Any, Callable[..., Any]] = current.get({}) if isinstance(current, ContextVar) else current
    return found


def wrap_cache_key_tag(kind: type[str]) -> None:
    """Let a kind of text stand for the tag that the user set; from torch 2.12 on it is this thread's own."""
    import torch.compiler.config

    tag = torch.compiler.config.cache_key_tag
    if type(tag) is not kind:
        torch.compiler.config.cache_key_tag = kind(tag)
