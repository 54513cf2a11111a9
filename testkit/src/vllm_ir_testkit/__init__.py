"""The test kit of vllm-ir: judges any provider, times it, and starts a new one.

Names are brought in when they are first used, so that pytest's start pays nothing for the plugin in here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_ir_testkit import strategies
    from vllm_ir_testkit.cases import Case
    from vllm_ir_testkit.engine import conformance
    from vllm_ir_testkit.known import KnownFailure
    from vllm_ir_testkit.manager import TestManager
    from vllm_ir_testkit.outcome import Finding, Outcome, Report

__all__ = ["Case", "Finding", "KnownFailure", "Outcome", "Report", "TestManager", "conformance", "strategies"]

_ROOMS = {
    "Case": "cases",
    "Finding": "outcome",
    "KnownFailure": "known",
    "Outcome": "outcome",
    "Report": "outcome",
    "TestManager": "manager",
    "conformance": "engine",
}


def __getattr__(name: str) -> Any:
    """Return a public name; torch is imported only when one is asked for."""
    from importlib import import_module

    if name == "strategies":
        return import_module(f"{__name__}.strategies")
    if name not in _ROOMS:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
