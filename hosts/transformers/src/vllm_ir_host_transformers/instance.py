"""The forward of one instance: put another there, see whose it is, take it away.

A forward is put into the instance's `__dict__` as a bound method called `forward`, and that choice carries much: the
class, and so every other model in the process, is untouched; a deep copy is bound to the copy; and pickle writes a
bound method as its name, so that what arrives elsewhere runs the forward of its class and needs nothing of ours.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from torch import nn
from vllm_ir import Unsupported

from vllm_ir_host_transformers.errors import NotAModel

if TYPE_CHECKING:
    from collections.abc import Callable

FORWARD: Final = "forward"
MARK: Final = "_vllm_ir_host"
KEPT_BY_ACCELERATE: Final = "_old_forward"
"""Where accelerate's hooks keep the forward that they wrap."""


def model_of(given: Any) -> nn.Module:
    """Return a model as it is, and that of a pipeline.

    Raises:
        NotAModel: it is neither.
    """
    model = given if isinstance(given, nn.Module) else getattr(given, "model", None)
    if not isinstance(model, nn.Module):
        raise NotAModel(given=f"a {type(given).__name__}")
    return model


def put(module: nn.Module, function: Callable[..., Any]) -> None:
    """Let one module run a function as its forward."""
    function.__dict__[MARK] = True
    module.__dict__[FORWARD] = MethodType(function, module)


def is_ours(forward: object) -> bool:
    """Tell whether a bound method is one that `put` placed."""
    return isinstance(forward, MethodType) and MARK in getattr(forward.__func__, "__dict__", ())


def occupied(module: nn.Module) -> Unsupported | None:
    """Return why a module's forward cannot be replaced, when somebody else replaced it on this instance."""
    forward = module.__dict__.get(FORWARD)
    # A pickled copy of a module with a replaced forward carries the bound forward of its class.
    own = isinstance(forward, MethodType) and forward.__func__ is type(module).forward
    if forward is None or own or is_ours(forward):
        return None
    return Unsupported("its forward has been replaced on this instance already, for example by accelerate")


def clear(model: nn.Module) -> None:
    """Take every forward away that `put` placed in a model."""
    for module in model.modules():
        if is_ours(module.__dict__.get(FORWARD)):
            del module.__dict__[FORWARD]
        if is_ours(module.__dict__.get(KEPT_BY_ACCELERATE)):
            module.__dict__[KEPT_BY_ACCELERATE] = MethodType(type(module).forward, module)


def hooked(module: nn.Module) -> bool:
    """Tell whether a hook waits for this module to be called."""
    return bool(
        module._forward_hooks  # noqa: SLF001 - torch has no public way to ask
        or module._forward_pre_hooks  # noqa: SLF001
        or module._backward_hooks  # noqa: SLF001
        or module._backward_pre_hooks  # noqa: SLF001
    )


def wrapped(module: nn.Module) -> bool:
    """Tell whether somebody else's forward stands on this instance, over ours or over that of its class."""
    # Transformers 5.0 keeps hidden states in this way, for the time of one forward pass.
    return occupied(module) is not None


def watched(module: nn.Module) -> bool:
    """Tell whether a hook, or a wrapper, may see what this module, or one inside it, is given or returns."""
    if module._forward_hooks or module._forward_pre_hooks or wrapped(module):  # noqa: SLF001
        return True
    return any(watched(child) for child in module._modules.values() if child is not None)  # noqa: SLF001
