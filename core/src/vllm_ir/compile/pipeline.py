"""The passes as Inductor takes them: with a key for its caches, before and behind what the user has set there."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import marks, torch_passes, torch_version
from vllm_ir.compile.functionalization import Donation, functionalize
from vllm_ir.compile.lowering import Lowered, Lowering
from vllm_ir.compile.passes.base import run_passes
from vllm_ir.compile.passes.surroundings import Surroundings
from vllm_ir.graphs import PassRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from vllm_ir.compile.plan import Plan


class Pipeline:
    """What happens to the graphs of one compilation.

    Args:
        plan: what it goes by.
        table: what is taken apart while an implementation is traced.

    Attributes:
        plan: what it goes by.
        backward: whether the graph at hand is a backward one.
        ran: what each pass did since it was last taken.
        lowered: what lowering did since it was last taken.
        whole: how often each op was left in the graph as it is, since it was last taken.
    """

    def __init__(self, plan: Plan, table: Mapping[Any, Callable[..., Any]]) -> None:
        self.plan = plan
        self._table = table
        self._donations = ""
        self.backward = False
        self.ran: list[PassRecord] = []
        self.lowered: Lowered | None = None
        self.whole: dict[str, int] = {}

    @property
    def key(self) -> str:
        """What Inductor's caches tell graphs apart by.

        Graphs that differ in nothing but what the caller donates look alike behind the first pass, so that is in it,
        too; before the first pass the program itself tells them apart.
        """
        return self.plan.digest + self._donations

    def functionalize(self, graph: fx.Graph) -> None:
        """Let every donating call be a functional one."""
        start = time.perf_counter()
        found = functionalize(graph, self.plan.ops)
        changes = sum(donation is not None for donation in found)
        self.ran.append(PassRecord("functionalization", changes, time.perf_counter() - start))
        # Once for each graph that this one calls, and for itself.
        self._donations += _digest(found)

    def transform(self, graph: fx.Graph, *, is_inference: bool) -> None:
        """Run the passes on the graph with the ops in it.

        Args:
            graph: functional.
            is_inference: whether it is for inference, as passes may ask.
        """
        around = Surroundings(self.plan, is_inference, self._table)
        self.ran += run_passes(self.plan.passes, graph, self.plan.bringers, around)

    def lower(
        self, graph: fx.Graph, *, is_inference: bool, table: Mapping[Any, Callable[..., Any]] | None = None
    ) -> Lowered:
        """Replace every call of an op by the implementation that runs it.

        Args:
            graph: functional.
            is_inference: whether it is for inference, so that the caller's donations count.
            table: what is taken apart while an implementation is traced; that of the compilation when None.
        """
        lowered = Lowering(self.plan, self._table if table is None else table, donating=is_inference).apply(graph)
        self.ran.append(PassRecord("lowering", lowered.changes, lowered.seconds))
        # Another compiler may have a graph lowered in parts.
        self.lowered = lowered if self.lowered is None else self.lowered.joined(lowered)
        return lowered

    def take(self) -> tuple[tuple[PassRecord, ...], Lowered | None, dict[str, int]]:
        """Return what happened since this was last asked, and which ops were left whole, and forget it."""
        taken = tuple(self.ran), self.lowered, self.whole
        self.ran, self.lowered, self.whole = [], None, {}
        return taken

    def patches(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration that puts the passes into Inductor's own.

        Ours come first before AOTAutograd, because everybody else counts on functional ops; the user's come before
        lowering where they can still see ops, and behind it where they see what Inductor will.

        Args:
            theirs: the passes that the user has set, by the name of their place.
        """
        first, middle, last = make_inductor_passes(self)
        return {
            "pre_grad_custom_pass": torch_passes.chained(first, theirs.get("pre_grad_custom_pass")),
            "post_grad_custom_pre_pass": torch_passes.chained(theirs.get("post_grad_custom_pre_pass"), middle),
            # Not earlier: what removes operations without effect would remove copies that protect an input.
            "post_grad_custom_post_pass": torch_passes.chained(last, theirs.get("post_grad_custom_post_pass")),
        }


def make_inductor_passes(pipeline: Pipeline) -> tuple[Any, Any, Any]:
    """Return the passes as objects of Inductor's own classes, made here because importing those costs seconds."""
    plain: Any = torch_passes.plain_pass_base()
    aware: Any = torch_passes.pass_base()

    class _Keyed:
        """The key that all three have."""

        def uuid(self) -> str:
            """Return the key for Inductor's caches."""
            return f"{type(self).__name__} {pipeline.key}"

    class Functionalization(_Keyed, plain):  # type: ignore[misc]
        """Runs before AOTAutograd."""

        def __call__(self, graph: fx.Graph) -> None:
            """Let every donating call be a functional one."""
            pipeline.functionalize(graph)

    class Transformation(_Keyed, aware):  # type: ignore[misc]
        """Runs on the functional graph."""

        def __call__(self, graph: fx.Graph, is_inference: bool) -> None:
            """Run the passes on the graph with the ops in it."""
            pipeline.transform(graph, is_inference=is_inference)

    class LoweringPass(_Keyed, aware):  # type: ignore[misc]
        """Runs last."""

        def __call__(self, graph: fx.Graph, is_inference: bool) -> None:
            """Replace every call of an op by the implementation that runs it."""
            lowered = pipeline.lower(graph, is_inference=is_inference)
            marks.leave(torch_version.counters(), lowered, pipeline.plan.digest, backward=pipeline.backward)

    return Functionalization(), Transformation(), LoweringPass()


def _digest(donations: list[Donation | None]) -> str:
    """Return what tells graphs apart that differ in nothing but donations; empty where there is none."""
    if not any(donations):
        return ""
    text = ";".join("-" if each is None else f"{each.op}{each.inputs}{each.donated}" for each in donations)
    return " " + hashlib.sha256(text.encode()).hexdigest()[:16]
