"""Graph passes: what one is, and those that come with the core."""

from __future__ import annotations

from vllm_ir.compile.passes import fusions
from vllm_ir.compile.passes.base import GraphPass

__all__ = ["GraphPass", "fusions"]
