"""The backend `vllm_ir` of torch.compile: ops stay whole through AOTAutograd and become implementations behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_ir import runtime
from vllm_ir.compile import torch_version
from vllm_ir.compile.lower_to import compile_with
from vllm_ir.compile.options import INDUCTOR, CompileOptions
from vllm_ir.compile.pipeline import Pipeline, read_selected
from vllm_ir.compile.plain import decompositions_without_ops
from vllm_ir.compile.plan import Plan
from vllm_ir.graphs import GraphRecord
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

PLACES: Final = ("pre_grad_custom_pass", "post_grad_custom_pre_pass", "post_grad_custom_post_pass")
"""Where Inductor takes passes of others."""


def backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile one graph; what `torch.compile(..., backend="vllm_ir", options=..., mode=...)` calls.

    Args:
        module: the graph as Dynamo made it.
        inputs: what it was traced with.
        options: `priority`, `passes`, `lower_to` and `exact` as in `vllm_ir.compile`, and options of Inductor.
        mode: one of torch.compile's modes, for Inductor.

    Raises:
        ConfigurationError: an option or a priority cannot be.
        UsedAfterDonation: a tensor is read after it was donated.
        BatchGuard: a predicate asks for a size that changes from call to call.
        SelectionError: nothing may run a call, or what a user named cannot.
    """
    return compile_graph(module, inputs, CompileOptions.read(options, mode))


def compile_graph(
    module: torch.fx.GraphModule, inputs: Sequence[Any], options: CompileOptions, plan: Plan | None = None
) -> Callable[..., Any]:
    """Compile one graph.

    Args:
        module: the graph as Dynamo made it.
        inputs: what it was traced with.
        options: what the user asks.
        plan: what it goes by; that of the current context when None.
    """
    plan = plan or take_plan(options)
    name = torch_version.compile_id()
    if options.lower_to != INDUCTOR:
        return compile_with(module, inputs, options, plan, name)
    table = decompositions_without_ops()
    pipeline = Pipeline(plan, table)
    theirs = {**torch_version.mode_options(options.mode), **options.inductor}
    set_by_user = {place: theirs.get(place, getattr(torch_version.inductor_config(), place)) for place in PLACES}
    patches = {**theirs, **pipeline.patches(set_by_user)}
    if plan.exact:
        patches.update(torch_version.EXACT)
    counters = torch_version.counters()
    before = dict(counters)
    compiled = torch_version.compile_with_inductor(module, inputs, patches, table)
    record(name, pipeline, read_selected(before, counters))
    return compiled


def take_plan(options: CompileOptions) -> Plan:
    """Return the plan of the current context with what a user asks before it."""
    return Plan.take(passes=options.passes, exact=options.exact, extra=options.wishes())


def record(name: str, pipeline: Pipeline, selected: Mapping[str, Mapping[str, str]]) -> None:
    """Keep what became of a graph, and log it."""
    ran, lowered = pipeline.take()
    refusals = () if lowered is None else tuple((*key, count) for key, count in lowered.refusals.items())
    found = GraphRecord(
        name=name,
        selected=selected if lowered is None else lowered.selected,
        refusals=refusals,
        passes=ran,
        copies=0 if lowered is None else lowered.copies,
        seconds=sum(each.seconds for each in ran),
        cached=lowered is None,
        digest=pipeline.plan.digest,
    )
    runtime.current().graphs.add([found])
    counts = {op: sorted(set(nodes.values())) for op, nodes in found.selected.items()}
    logger.debug(
        "graph %s: %s; %d copies, our passes took %.1f ms",
        name,
        "from a cache, no pass ran" if found.cached else counts,
        found.copies,
        1e3 * found.seconds,
    )
