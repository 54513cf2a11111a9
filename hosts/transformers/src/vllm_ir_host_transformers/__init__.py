"""Runs Hugging Face models on the kernels you choose: norms, activations and rotary embedding become IR ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_ir_host_transformers.findings import Left, Replaced, Replacement
    from vllm_ir_host_transformers.replace import restore, use_ir_ops

__all__ = ["Left", "Replaced", "Replacement", "restore", "use_ir_ops"]

_ROOMS = {
    "Left": "findings",
    "Replaced": "findings",
    "Replacement": "findings",
    "restore": "replace",
    "use_ir_ops": "replace",
}


def __getattr__(name: str) -> Any:
    """Return a public name; torch is imported only when one is asked for."""
    if name not in _ROOMS:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
