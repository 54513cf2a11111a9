"""Distributions that bring providers: what they say about themselves, whether they may load, and how they fail.

`static` answers from files alone, without importing a provider; `discovery` loads. What an op means is left to `ops`,
the order of candidates to `priority`. The names below are brought in at first use, so that a verb which only reads
files loads neither pluggy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_ir.plugins.discovery import load_providers, providers
    from vllm_ir.plugins.hookspecs import hookimpl
    from vllm_ir.plugins.warming import warm_up

__all__ = ["hookimpl", "load_providers", "providers", "warm_up"]

_HOMES: Final = {
    "hookimpl": "vllm_ir.plugins.hookspecs",
    "load_providers": "vllm_ir.plugins.discovery",
    "providers": "vllm_ir.plugins.discovery",
    "warm_up": "vllm_ir.plugins.warming",
}


def __getattr__(name: str) -> Any:
    """Bring in a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
