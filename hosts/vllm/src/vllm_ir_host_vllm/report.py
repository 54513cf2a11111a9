"""What this host did at the start of a process, in one line for the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir_host_vllm.adopting import Adoption
    from vllm_ir_host_vllm.variables import Mode


@dataclass(frozen=True, slots=True)
class Started:
    """What was done.

    Attributes:
        version: of vLLM.
        mode: in which vLLM is served.
        vllm_ops: vLLM's own ops by name; none where it has none.
        adoption: what became of providers in vLLM's ops; None in layer mode.
        providers: what vllm-ir says of what it loaded.
    """

    version: str
    mode: Mode
    vllm_ops: Mapping[str, Any]
    adoption: Adoption | None
    providers: str

    def __str__(self) -> str:
        """Return mode and providers, and what was not registered with the reason."""
        parts = [f"vllm-ir in vLLM {self.version}: {self.mode} mode"]
        if self.adoption is not None:
            adopted = ", ".join(f"{op} by {', '.join(names)}" for op, names in self.adoption.adopted.items())
            parts.append(f"added to vLLM's ops: {adopted or 'nothing'}")
            if self.adoption.taken:
                kept = ", ".join(f"{provider} for {op}" for op, provider in self.adoption.taken)
                parts.append(f"vLLM's own stay: {kept}")
            if self.adoption.left:
                parts.append("not added: " + ", ".join(f"{who} to {op} ({why})" for op, who, why in self.adoption.left))
        return "; ".join(filter(None, [*parts, self.providers]))
