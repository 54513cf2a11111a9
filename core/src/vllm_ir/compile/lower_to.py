"""Other compilers than Inductor: they get the graph with the ops in it, and a helper that lowers what they leave."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import calls_of, subgraphs, value_of
from vllm_ir.compile.lowering import Lowered
from vllm_ir.compile.pipeline import Pipeline
from vllm_ir.compile.plan import Plan
from vllm_ir.compile.tracing import refresh_views
from vllm_ir.errors import BadCompileOption, NoGraph
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from vllm_ir.compile.options import CompileOptions
    from vllm_ir.compile.recording import Recorder

HOME: Final = "vllm_ir"
"""The key of a graph module's metadata that says which compilation it belongs to."""


class Home(NamedTuple):
    """Which compilation a graph belongs to.

    Attributes:
        pipeline: what happens to its graphs.
        is_inference: whether it is one for inference.
    """

    pipeline: Pipeline
    is_inference: bool

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Return what stands for it in the key of a cache that the other compiler keeps."""
        return str, (f"{self.pipeline.key} {self.is_inference}",)


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
                pipeline.transform(inner.graph, is_inference=is_inference)
                inner.recompile()
            graph.meta[HOME] = Home(pipeline, is_inference)
            before = _ops_in(graph, pipeline.plan)
            made = lower_to(graph, example)
            if not callable(made):
                raise BadCompileOption(
                    option="lower_to",
                    got=f"a function that returned {made!r}",
                    wanted="one that returns what runs the graph, called with the graph's inputs",
                )
            pipeline.whole = _left(before, _ops_in(graph, pipeline.plan), pipeline.lowered)
            _tell_of_ops_left(pipeline.whole, options)
            return made

    for _, inner in (*subgraphs(module), ("", module)):
        pipeline.functionalize(inner.graph)
        inner.recompile()
    compiled: Callable[..., Any] = torch_version.compile_with_aot(module, inputs, prepare)
    return compiled


def _ops_in(graph: torch.fx.GraphModule, plan: Plan) -> Counter[str]:
    """Return how often each op is called in a graph and in its parts."""
    calls = calls_of(plan.ops)
    modules = [graph, *(inner for _, inner in subgraphs(graph))]
    return Counter(calls[node.target][0].name for each in modules for node in each.graph.nodes if node.target in calls)


def _left(before: Counter[str], after: Counter[str], lowered: Lowered | None) -> dict[str, int]:
    """Return how often each op stays whole; one that was lowered in a copy of its part still stands in the graph.

    Args:
        before: how often each was in the graph that the compiler was given.
        after: how often each is there still.
        lowered: what the compiler had lowered.
    """
    done = {} if lowered is None else {op: len(nodes) for op, nodes in lowered.selected.items()}
    counts = {op: min(count, before[op] - done.get(op, 0)) for op, count in sorted(after.items())}
    return {op: count for op, count in counts.items() if count > 0}


def _tell_of_ops_left(left: Mapping[str, int], options: CompileOptions) -> None:
    """Warn of ops that nobody replaced although somebody said who is to run them."""
    for name in sorted(set(left) & set(options.wishes())):
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
        table: what to take apart while implementations are traced, such as Inductor's decompositions where it gets the
            graph; nothing when None.

    Returns:
        who runs which node, and why others do not.

    Raises:
        NoGraph: it is none, or an op in it is given what has no fake result.
        SelectionError: nothing may run a call, or what a user named cannot.
        BatchGuard: a predicate asks for a size that changes from call to call.
    """
    for argument, value in (("module", module), ("of", of)):
        if not _is_graph(value) and (value is not None or argument == "module"):
            raise NoGraph(argument=argument, got=repr(value))
    home: Home | None = (of or module).meta.get(HOME)
    if home is not None and plan is None:
        pipeline, is_inference = home.pipeline, home.is_inference
    else:
        pipeline = Pipeline(plan or Plan.take(), {})
        is_inference = home is not None and home.is_inference
    _check_fakes(module, pipeline.plan)
    found = Lowered()
    for name, inner in (*subgraphs(module), ("", module)):
        # What a part is given belongs to the graph around it, whatever the caller donated.
        whole = not name and of in (None, module)
        lowered = pipeline.lower(inner.graph, is_inference=is_inference and whole, table=table)
        refresh_views(inner.graph)
        inner.recompile()
        found = found.joined(lowered)
    return found


def _is_graph(value: object) -> bool:
    """Tell whether a value is a graph module."""
    import torch

    return isinstance(value, torch.fx.GraphModule)


def _check_fakes(module: torch.fx.GraphModule, plan: Plan) -> None:
    """Raise if nothing is known of what an op is given, as in a graph that was traced without any inputs.

    Raises:
        NoGraph: so it is.
    """
    calls = calls_of(plan.ops)
    for each in (module, *(inner for _, inner in subgraphs(module))):
        for node in each.graph.nodes:
            blank = (
                next((n for n in node.all_input_nodes if value_of(n) is None), None) if node.target in calls else None
            )
            if blank is not None:
                raise NoGraph(argument="module", got=f"a graph without a fake result in node {blank.name!r}")
