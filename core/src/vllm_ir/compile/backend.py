"""The backend `vllm_ir` of torch.compile: ops stay whole through AOTAutograd and become implementations behind it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_version
from vllm_ir.compile.autocast import tell_of_autocast
from vllm_ir.compile.functionalization import mark_subgraphs
from vllm_ir.compile.graph import place_of
from vllm_ir.compile.guards import watch
from vllm_ir.compile.kept import check_kept
from vllm_ir.compile.lower_to import compile_with
from vllm_ir.compile.options import INDUCTOR, CompileOptions
from vllm_ir.compile.pipeline import Pipeline
from vllm_ir.compile.plain import decompositions_without_ops
from vllm_ir.compile.plan import Plan
from vllm_ir.compile.recording import Recorder
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
        options: `priority`, `passes`, `fusions`, `lower_to` and `exact` as in `vllm_ir.compile`, and Inductor's.
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
        plan: what it goes by; when None that of the current context, with a guard that the process still wants it.
    """
    name = torch_version.compile_id()
    watched = None
    if plan is None:
        plan, watched = watch(lambda: take_plan(options), name, options.wishes())
    theirs = {**torch_version.mode_options(options.mode), **options.inductor}
    if plan.exact:
        theirs.update(torch_version.EXACT)
        for device_type in _rounding_devices(inputs) if options.lower_to == INDUCTOR else ():
            _tell_of_roundings(device_type)
    table = decompositions_without_ops(theirs) if options.lower_to == INDUCTOR else {}
    pipeline = Pipeline(plan, table)
    recorder = Recorder(name, pipeline, place_of(module.graph))
    if watched is not None:
        watched.ops = recorder.ops
    check_kept(module, plan.ops)
    tell_of_autocast(module, plan.ops)
    mark_subgraphs(module)
    if options.lower_to != INDUCTOR:
        return compile_with(module, inputs, options, recorder)
    set_by_user = {place: theirs.get(place, getattr(torch_version.inductor_config(), place)) for place in PLACES}
    patches = {**theirs, **pipeline.patches(set_by_user)}
    with recorder.whole():
        return torch_version.compile_with_inductor(module, inputs, patches, table, recorder.one)


def _rounding_devices(inputs: Sequence[Any]) -> frozenset[str]:
    """Return the devices of inputs in dtypes that eager rounds to."""
    import torch

    half = (torch.bfloat16, torch.float16)
    return frozenset(each.device.type for each in inputs if isinstance(each, torch.Tensor) and each.dtype in half)


@functools.cache
def _tell_of_roundings(device_type: str) -> None:
    """Warn once for each kind of device where Inductor's kernels cannot keep the roundings that were asked for."""
    if not torch_version.honours_roundings(device_type):
        version = ".".join(map(str, torch_version.version()))
        logger.warning(
            "exact=True: ops keep the bits that eager gives, but torch %s drops roundings between other operations on"
            " device %s; torch 2.13 keeps them on a CPU. What is compiled there may differ from eager.",
            version,
            device_type,
        )


def take_plan(options: CompileOptions) -> Plan:
    """Return the plan of the current context with what a user asks before it."""
    return Plan.take(passes=options.all_passes(), exact=options.exact, extra=options.wishes())
