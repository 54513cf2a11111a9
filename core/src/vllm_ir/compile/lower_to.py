"""Other compilers than Inductor: they get the graph with the ops in it, and a helper that lowers what they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir import runtime
from vllm_ir.compile import torch_version
from vllm_ir.compile.pipeline import Pipeline
from vllm_ir.compile.plan import Plan
from vllm_ir.graphs import GraphRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from vllm_ir.compile.lowering import Lowered
    from vllm_ir.compile.options import CompileOptions


def compile_with(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions, plan: Plan, name: str
) -> Callable[..., Any]:
    """Compile one graph with a compiler of the user's.

    Args:
        module: the graph as Dynamo made it.
        inputs: what it was traced with.
        options: with a function as `lower_to`.
        plan: what it goes by.
        name: how Dynamo calls the graph.
    """
    pipeline = Pipeline(plan, {})

    def prepare(graph_module: torch.fx.GraphModule, example: Sequence[Any], *, is_inference: bool) -> Any:
        """Run the passes, then hand the graph over."""
        pipeline.transform(graph_module.graph)
        graph_module.meta["vllm_ir"] = (pipeline, is_inference)
        lower_to: Any = options.lower_to
        graph_module.recompile()
        made = lower_to(graph_module, example)
        ran, lowered = pipeline.take()
        runtime.current().graphs.add([_record(name if is_inference else f"{name} training", ran, lowered, plan)])
        return made

    pipeline.functionalize(module.graph)
    module.recompile()
    compiled: Callable[..., Any] = torch_version.compile_with_aot(module, inputs, prepare)
    return compiled


def lower_graph(
    module: torch.fx.GraphModule,
    plan: Plan | None = None,
    *,
    table: Mapping[Any, Callable[..., Any]] | None = None,
) -> Lowered:
    """Replace every op that is left in a graph by the implementation that runs it, where it stands.

    Args:
        module: the graph that a `lower_to` function was given, or any functional one with fake results in its nodes'
            metadata.
        plan: what it goes by; that of the compilation the graph comes from, else that of the current context.
        table: what to take apart while implementations are traced; nothing when None.

    Returns:
        who runs which node, and why others do not.

    Raises:
        SelectionError: nothing may run a call, or what a user named cannot.
        BatchGuard: a predicate asks for a size that changes from call to call.
    """
    found: Any = module.meta.get("vllm_ir")
    if found is not None and plan is None and table is None:
        pipeline, is_inference = found
    else:
        pipeline, is_inference = Pipeline(plan or Plan.take(), table or {}), found is not None and found[1]
    lowered: Lowered = pipeline.lower(module.graph, is_inference=is_inference)
    module.recompile()
    return lowered


def _record(name: str, ran: Any, lowered: Lowered | None, plan: Plan) -> GraphRecord:
    """Return what became of a graph."""
    return GraphRecord(
        name=name,
        selected={} if lowered is None else lowered.selected,
        refusals=() if lowered is None else tuple((*key, count) for key, count in lowered.refusals.items()),
        passes=ran,
        copies=0 if lowered is None else lowered.copies,
        seconds=sum(each.seconds for each in ran),
        digest=plan.digest,
    )
