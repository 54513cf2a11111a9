"""vLLM IR: what an operator means, apart from which kernel runs it.

Names are brought in when they are first used, so that a command that needs no torch imports none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import first_use as _first_use
from vllm_ir import guarding as _guarding
from vllm_ir import inlining as _inlining

if TYPE_CHECKING:
    from vllm_ir import errors, ops
    from vllm_ir.compile.function import compile_model as compile  # noqa: A004 - torch calls it so, too
    from vllm_ir.config import IrOpPriorityConfig, KernelConfig
    from vllm_ir.consensus import selection_digest, verify_agreement
    from vllm_ir.declare import enable_torch_wrap, register_op, set_default_torch_wrap
    from vllm_ir.implementation import IrOpImpl, implements
    from vllm_ir.kernel_op import make_torch_op
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform
    from vllm_ir.plugins import hookimpl, load_providers, providers, warm_up
    from vllm_ir.reporting import explain, report
    from vllm_ir.verdict import Unsupported

    current_platform: Platform

__all__ = [
    "IrOp",
    "IrOpImpl",
    "IrOpPriorityConfig",
    "KernelConfig",
    "Platform",
    "Unsupported",
    "compile",
    "current_platform",
    "enable_torch_wrap",
    "errors",
    "explain",
    "hookimpl",
    "implements",
    "load_providers",
    "make_torch_op",
    "ops",
    "providers",
    "register_op",
    "report",
    "selection_digest",
    "set_default_torch_wrap",
    "verify_agreement",
    "warm_up",
]

_HOMES: Final = {
    "IrOp": "vllm_ir.op",
    "IrOpImpl": "vllm_ir.implementation",
    "IrOpPriorityConfig": "vllm_ir.config",
    "KernelConfig": "vllm_ir.config",
    "Platform": "vllm_ir.platforms",
    "Unsupported": "vllm_ir.verdict",
    "enable_torch_wrap": "vllm_ir.declare",
    "explain": "vllm_ir.reporting",
    "hookimpl": "vllm_ir.plugins",
    "implements": "vllm_ir.implementation",
    "load_providers": "vllm_ir.plugins",
    "make_torch_op": "vllm_ir.kernel_op",
    "providers": "vllm_ir.plugins",
    "register_op": "vllm_ir.declare",
    "report": "vllm_ir.reporting",
    "selection_digest": "vllm_ir.consensus",
    "set_default_torch_wrap": "vllm_ir.declare",
    "verify_agreement": "vllm_ir.consensus",
    "warm_up": "vllm_ir.plugins",
}
"""The module of each public name that is no module itself."""


if not TYPE_CHECKING:
    # A checker that saw this would take every misspelt name for one that exists.

    def __getattr__(name: str) -> Any:
        """Bring in a public name; `current_platform` is asked anew each time, since a provider may bring a platform."""
        if name == "current_platform":
            return import_module("vllm_ir.runtime").current().platform
        if name in ("compile", "errors", "ops"):
            return import_module(f"vllm_ir.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'vllm_ir' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)


def _discover() -> None:
    """Find and load providers; what is done before the first selection."""
    import_module("vllm_ir.plugins").load_providers()


def _guard() -> Any:
    """Return what holds a process to a lock; brought in where one is in force."""
    return import_module("vllm_ir.lock.enforcement")


def _inliner() -> _inlining.Inliner:
    """Return what answers a graph that plain torch.compile makes; brought in by the first that asks."""
    found: _inlining.Inliner = import_module("vllm_ir.compile.plain")
    return found


_first_use.prepare(_discover)
_guarding.prepare(_guard)
_inlining.prepare(_inliner)
