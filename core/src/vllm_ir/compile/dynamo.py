"""What of Dynamo has no public name: guards on a value of ours, compilations apart from each other, compiled modules.

Like `torch_version`, the only place that knows it; seen alike in torch 2.11 to 2.14 unless a function says otherwise.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn


def add_guard(holder: object, attribute: str) -> bool:
    """Let the code that is being compiled be used only while an attribute equals what it is at the end of it.

    The attribute is read before each call of that code, in the thread and the context that call it.

    Args:
        holder: what has the attribute; kept alive by the compiled code.
        attribute: its name.

    Returns:
        whether Dynamo compiles at all; a graph that somebody else made has no guards.
    """
    from torch._dynamo.guards import GuardBuilder, install_guard
    from torch._dynamo.source import AttrSource, GlobalSource
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        translator: Any = InstructionTranslator.current_tx()
    except AttributeError:
        return False
    name: str = translator.output.install_global("__vllm_ir", holder)
    install_guard(AttrSource(GlobalSource(name), attribute).make_guard(GuardBuilder.EQUALS_MATCH))
    return True


def compiling() -> bool:
    """Tell whether this thread is compiling a frame, so that guards are made and not asked."""
    from torch._guards import CompileContext

    return CompileContext.try_get() is not None


def opens_sizes_that_change() -> bool:
    """Tell whether this thread compiles a frame that Dynamo will compile anew, for all sizes, when one has changed."""
    from torch._dynamo import config

    return compiling() and bool(config.automatic_dynamic_shapes)


def compile_apart(
    function: Callable[..., Any], backend: Callable[..., Any], keywords: Mapping[str, Any]
) -> Callable[..., Any]:
    """Return a compiled function that shares neither compiled code nor limits with other compilations of the function.

    Before torch 2.13 that holds for the function itself; functions that it calls behind a graph break share Dynamo's
    limit on recompilations with all others.

    Args:
        function: what is compiled.
        backend: what compiles its graphs.
        keywords: more for torch.compile.
    """
    import torch

    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        known: Any = {"isolate_recompiles": True}
    else:
        function, known = _inlining(function), {}
    compiled: Callable[..., Any] = torch.compile(function, backend=backend, **known, **keywords)
    return compiled


def _inlining(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that Dynamo sees through, with code of its own, by which Dynamo keeps what it compiled."""

    def inner(*args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return function(*args, **kwargs)

    inner.__code__ = inner.__code__.replace()
    return inner


def compiled_module(module: nn.Module, context: Callable[[Callable[..., Any]], Callable[..., Any]]) -> nn.Module:
    """Return what `torch.compile(module)` returns, but with other code that is compiled.

    Args:
        module: the model.
        context: makes a compiled function of what the module's call is; pickled and copied with the module.
    """
    import torch

    made: Any = torch.compile(module, backend="eager")
    if made is not module:
        made.dynamo_ctx = context
        made._initialize()  # noqa: SLF001 - makes the call of what the context is
    compiled: nn.Module = made
    return compiled


def pretend_to_be_compiled(run: Any, function: Callable[..., Any]) -> None:
    """Let whoever compiles a function that calls a compiled one, or a compiled one again, see the original."""
    vars(run).update(
        _torchdynamo_inline=function,
        _torchdynamo_orig_callable=function,
        _torchdynamo_wrapper_id=id(run),
        get_compiler_config=lambda: None,
    )


def is_dynamos(error: BaseException) -> bool:
    """Tell whether an exception is Dynamo's own, which may wrap one of a backend."""
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException)
