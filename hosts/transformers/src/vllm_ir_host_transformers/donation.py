"""When the residual may be donated to the fused op: only where nobody else can hold it.

A decoder layer's residual is its input, which the caller may keep: as an embedding the user passed, in a list of hidden
states, in a hook, for a recomputation in the backward pass. So it is donated only if all of this is so:

- no gradient is asked for, the model does not train and nothing is being traced;
- a stack of layers is running its own forward, whose loop was read and forgets every hidden state;
- the residual is, by identity, what the layer before returned in this very pass;
- no hook waits anywhere in the two layers, nor for all modules, and nobody has wrapped their forwards.

In every other case the functional overload runs, with the same result. A compiler gets the functional overload always:
it sees by itself which tensors are used again.
"""

from __future__ import annotations

import ast
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook
from vllm_ir import Unsupported

from vllm_ir_host_transformers.edits import reading_of
from vllm_ir_host_transformers.instance import watched, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@dataclass(slots=True)
class Pass:
    """One forward pass of a stack of layers.

    Attributes:
        layers: the identities of its layers.
        made: what the layer before returned, when nobody but the loop can hold it.
    """

    layers: frozenset[int]
    made: weakref.ref[Tensor] | None = None


_PASS: Final[ContextVar[Pass | None]] = ContextVar("vllm_ir_host_pass", default=None)


def allowed(layer: nn.Module, residual: Tensor) -> bool:
    """Tell whether a layer may give its residual away."""
    if torch.compiler.is_compiling():
        return False
    current = _PASS.get()
    return (
        current is not None
        and current.made is not None
        and current.made() is residual
        and id(layer) in current.layers
        and not watched(layer)
        and not _has_any_global_hook()
    )


def returns(layer: nn.Module, hidden_states: Tensor) -> Tensor:
    """Note that a layer returns a tensor it has just made, and return it."""
    if not torch.compiler.is_compiling():
        current = _PASS.get()
        if current is not None:
            hooks = layer._forward_hooks  # noqa: SLF001 - torch has no public way to ask
            unseen = id(layer) in current.layers and not hooks and not wrapped(layer)
            current.made = weakref.ref(hidden_states) if unseen else None
    return hidden_states


def forgets(stack: nn.Module, layers: str) -> bool | Unsupported:
    """Tell whether the forward of a stack keeps no hidden state of its layers.

    Args:
        stack: the module whose forward calls the layers.
        layers: the name of its list of layers.
    """
    reading = reading_of(type(stack).forward)
    if isinstance(reading, Unsupported):
        return reading
    loops = [node for node in ast.walk(reading.tree) if isinstance(node, ast.For) and _is_over(node, layers)]
    mentions = [
        node
        for node in ast.walk(reading.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{layers}"
    ]
    if len(loops) == 1 and len(mentions) == 1 and _hands_on(loops[0]):
        return True
    return Unsupported(f"the loop of {type(stack).__name__} may keep hidden states")


def _is_over(loop: ast.For, layers: str) -> bool:
    """Tell whether a loop runs over the layers."""
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{layers}" for node in ast.walk(loop.iter)
    )


def _hands_on(loop: ast.For) -> bool:
    """Tell whether all that a loop does is `h = layer(h, ...)`."""
    if len(loop.body) != 1 or loop.orelse or not isinstance(loop.body[0], ast.Assign):
        return False
    target, call = loop.body[0].targets[0], loop.body[0].value
    if len(loop.body[0].targets) != 1 or not isinstance(target, ast.Name) or not isinstance(call, ast.Call):
        return False
    variables = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    used = [node for node in ast.walk(call) if isinstance(node, ast.Name) and node.id == target.id]
    return (
        isinstance(call.func, ast.Name)
        and call.func.id in variables
        and len(used) == 1
        and bool(call.args)
        and call.args[0] is used[0]
    )


@lru_cache(maxsize=256)
def forward_of(original: Callable[..., Any], layers: str) -> Callable[..., Any]:
    """Return the forward of a stack that says when a pass of it runs."""

    @wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Run the stack's own forward within a pass, unless somebody may come back for its tensors."""
        if torch.compiler.is_compiling() or self.training or torch.is_grad_enabled():
            return original(self, *args, **kwargs)
        token = _PASS.set(Pass(frozenset(map(id, getattr(self, layers)))))
        try:
            return original(self, *args, **kwargs)
        finally:
            _PASS.reset(token)

    return forward
