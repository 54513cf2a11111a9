"""The fusions that come with the core, by name; each function returns a new pass. None of them is on by itself."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import BadCompileOption, UnknownFusion

if TYPE_CHECKING:
    from vllm_ir.compile.passes.activation_quant import activation_quant
    from vllm_ir.compile.passes.add_norm import add_norm
    from vllm_ir.compile.passes.base import GraphPass
    from vllm_ir.compile.passes.noop_removal import noop_removal
    from vllm_ir.compile.passes.norm_quant import norm_quant
    from vllm_ir.compile.passes.qk_norm_rope import qk_norm_rope

__all__ = ["ALL", "NAMES", "activation_quant", "add_norm", "noop_removal", "norm_quant", "qk_norm_rope"]

ALL: Final = "all"
"""Stands for every one of them."""

NAMES: Final = ("qk_norm_rope", "noop_removal", "add_norm", "norm_quant", "activation_quant")
"""Their names, in the order in which they run where nothing else is declared; each lives in a module of its name."""


def read_fusions(value: Any) -> tuple[str, ...]:
    """Return the names that a user asked for, each once, in the order of the built-ins.

    Args:
        value: "all", a name, a sequence of names, or None.

    Raises:
        UnknownFusion: there is none of a name.
        BadCompileOption: it is none of these.
    """
    given = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise BadCompileOption(option="fusions", got=repr(value), wanted='"all" or a list of names')
    unknown = next((name for name in given if name not in (*NAMES, ALL)), None)
    if unknown is not None:
        raise UnknownFusion(name=unknown, known=NAMES)
    return NAMES if ALL in given else tuple(name for name in NAMES if name in given)


def make(names: tuple[str, ...]) -> tuple[GraphPass, ...]:
    """Return the passes of some names, the same every time."""
    return tuple(map(_default, names))


@functools.cache
def _default(name: str) -> GraphPass:
    """Return a pass as its name alone asks for it: one a process, since its patterns are drawn once."""
    made: GraphPass = _maker(name)()
    return made


def _maker(name: str) -> Any:
    """Return what makes a pass; brought in when it is wanted, since that needs torch."""
    return getattr(import_module(f"vllm_ir.compile.passes.{name}"), name)


if not TYPE_CHECKING:
    # A checker that saw this would take every misspelt name for one that exists.

    def __getattr__(name: str) -> Any:
        """Bring in what makes a pass."""
        if name not in NAMES:
            raise AttributeError(f"module 'vllm_ir.compile.passes.fusions' has no attribute {name!r}")
        return _maker(name)
