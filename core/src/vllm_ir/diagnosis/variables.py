"""The environment variables that matter, with what is wrong with each.

What one of ours means, and whether it can be read, is left to `environment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.environment import KNOWN
from vllm_ir.errors import did_you_mean
from vllm_ir.plugins.walk import walk

if TYPE_CHECKING:
    from collections.abc import Mapping

OURS: Final = (*KNOWN, "VLLM_BATCH_INVARIANT", "VLLM_LOGGING_LEVEL")
"""Variables that mean something to the core."""

OTHERS: Final = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PROMETHEUS_MULTIPROC_DIR",
    "PYTHONPATH",
    "ROCR_VISIBLE_DEVICES",
    "TORCH_COMPILE_DISABLE",
    "TORCHINDUCTOR_CACHE_DIR",
    "VLLM_PLUGINS",
    "XDG_CACHE_HOME",
    "ZE_AFFINITY_MASK",
)
"""Variables of others that decide what is found or where it runs."""

PLUGIN: Final = ("vllm-ir-host-vllm", "vllm_ir")
"""The distribution that brings providers into vLLM, and the name by which VLLM_PLUGINS knows it."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable.

    Attributes:
        name: its name.
        value: as it is written.
        problem: why it is not in force; None where it is.
    """

    name: str
    value: str
    problem: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {"name": self.name, "value": self.value, "problem": self.problem}


def read_variables(variables: Mapping[str, str], problems: Mapping[str, str]) -> tuple[Variable, ...]:
    """Return every variable that is set and matters, ours first.

    Args:
        variables: names and values.
        problems: why one of ours cannot be read, by name.
    """
    names = [name for name in sorted(variables) if name in OURS or name.startswith("VLLM_IR_")]
    names += [name for name in OTHERS if name in variables]
    return tuple(
        Variable(name, value, problems.get(name) or _unknown(name) or _empty(name, value) or _left_out(name, value))
        for name, value in ((name, variables[name]) for name in names)
    )


def _empty(name: str, value: str) -> str | None:
    """Return that the cache's path is empty, as a template leaves it; that of a lock or a policy cannot be read."""
    if name != "VLLM_IR_CACHE" or value:
        return None
    return f"It is set to nothing and counts as not set. Set it to a path, or not at all: unset {name}."


def _left_out(name: str, value: str) -> str | None:
    """Return that a list of vLLM's plugins leaves ours out, although it is installed, or None."""
    distribution, plugin = PLUGIN
    if name != "VLLM_PLUGINS" or plugin in value.split(",") or all(each.key != distribution for each in walk()):
        return None
    return f"{distribution} is installed, but vLLM does not load it: the list lacks {plugin!r}."


def _unknown(name: str) -> str | None:
    """Return that a variable means nothing, with the nearest that does, or None."""
    if name in OURS or not name.startswith("VLLM_IR_"):
        return None
    return f"It means nothing to vllm-ir and is ignored.{did_you_mean(name, KNOWN)}"
