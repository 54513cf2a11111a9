"""What a pass may ask about the compilation around a graph, and what it answers: changes and near misses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir.compile.plan import Plan
    from vllm_ir.graphs import NearMiss
    from vllm_ir.op import IrOp


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What holds for a graph that a pass is given.

    Attributes:
        plan: who may run what; None where a pass is run by hand, outside of a compilation.
        is_inference: whether the graph is for inference; in one that is differentiated, results are kept for later.
        table: what the compiler takes apart while it traces.
    """

    plan: Plan | None = None
    is_inference: bool = True
    table: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)

    def ops(self) -> Mapping[str, IrOp]:
        """Return all ops by name."""
        if self.plan is not None:
            return self.plan.ops
        return {op.name: op for op in runtime.current().registry}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a pass did to one graph.

    Attributes:
        changes: in how many places.
        near_misses: what it looked for and left alone, with the reason.
    """

    changes: int
    near_misses: tuple[NearMiss, ...] = ()
