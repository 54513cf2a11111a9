"""Other compilers than Inductor: they get the graph with the ops in it, and a helper that lowers what they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import calls_of, subgraphs
from vllm_ir.compile.lowering import Lowered
from vllm_ir.compile.pipeline import Pipeline
from vllm_ir.compile.plan import Plan
from vllm_ir.compile.tracing import refresh_views
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from vllm_ir.compile.options import CompileOptions
    from vllm_ir.compile.recording import Recorder

HOME: Final = "vllm_ir"
"""The key of a graph module's metadata that says which compilation it belongs to."""


def compile_with(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions, recorder: Recorder
) -> Callable[..., Any]:
    """Compile one graph with a compiler of the user's.

    Args:
        module: the graph as Dynamo made it.
        inputs: what it was traced with.
        options: with a function as `lower_to`.
        recorder: remembers what becomes of it, and has the passes.
    """
    pipeline = recorder.pipeline
    lower_to: Any = options.lower_to

    def prepare(graph: torch.fx.GraphModule, example: Sequence[Any], *, is_inference: bool, backward: bool) -> Any:
        """Run the passes, then hand the graph over."""
        with recorder.one(backward=backward):
            for _, inner in (*subgraphs(graph), ("", graph)):
                pipeline.transform(inner.graph)
                inner.recompile()
            graph.meta[HOME] = (pipeline, is_inference)
            made = lower_to(graph, example)
            _tell_of_ops_left(graph, options, pipeline.plan)
            return made

    for _, inner in (*subgraphs(module), ("", module)):
        pipeline.functionalize(inner.graph)
        inner.recompile()
    compiled: Callable[..., Any] = torch_version.compile_with_aot(module, inputs, prepare)
    return compiled


def _tell_of_ops_left(graph: torch.fx.GraphModule, options: CompileOptions, plan: Plan) -> None:
    """Warn of ops that nobody replaced although somebody said who is to run them."""
    calls = calls_of(plan.ops)
    modules = [graph, *(inner for _, inner in subgraphs(graph))]
    left = {calls[node.target][0].name for each in modules for node in each.graph.nodes if node.target in calls}
    for name in sorted(left & set(options.wishes())):
        logger.warning(
            "op %s: lower_to left it in the graph, so it dispatches when it runs, and compile(priority=...) does not"
            " hold for it. Call lower_graph on the graph.",
            name,
        )


def lower_graph(
    module: torch.fx.GraphModule,
    plan: Plan | None = None,
    *,
    of: torch.fx.GraphModule | None = None,
    table: Mapping[Any, Callable[..., Any]] | None = None,
) -> Lowered:
    """Replace every op that is left in a graph by the implementation that runs it, where it stands.

    Args:
        module: the graph that a `lower_to` function was given, a part of it, or any functional one with fake results
            in its nodes' metadata.
        plan: what it goes by; that of the compilation the graph comes from, else that of the current context.
        of: the graph that the `lower_to` function was given, where `module` is a part cut out of it.
        table: what to take apart while implementations are traced; nothing when None.

    Returns:
        who runs which node, and why others do not.

    Raises:
        SelectionError: nothing may run a call, or what a user named cannot.
        BatchGuard: a predicate asks for a size that changes from call to call.
    """
    home: Any = (of or module).meta.get(HOME)
    if home is not None and plan is None and table is None:
        pipeline, is_inference = home
    else:
        pipeline, is_inference = Pipeline(plan or Plan.take(), table or {}), home is not None and home[1]
    found = Lowered()
    for name, inner in (*subgraphs(module), ("", module)):
        # What a part is given belongs to the graph around it, whatever the caller donated.
        lowered = pipeline.lower(inner.graph, is_inference=is_inference and not name and of in (None, module))
        refresh_views(inner.graph)
        inner.recompile()
        found = found.joined(lowered)
    return found
