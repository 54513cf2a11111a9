"""What differs between the versions of torch that are supported, and what of torch has no public name.

Everything else in this package is written against this module.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch


def inductor_config() -> Any:
    """Return Inductor's configuration."""
    from torch._inductor import config

    return config


def pass_base() -> type:
    """Return the class of a graph pass that has a cache key and is told whether the graph is one for inference."""
    from torch._inductor.custom_graph_pass import CustomInferenceAwareGraphPass

    return CustomInferenceAwareGraphPass


def plain_pass_base() -> type:
    """Return the class of a graph pass that has a cache key."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    return CustomGraphPass


def chained(*passes: Any) -> Any:
    """Return passes as one value of a configuration; None among them, and tuples of them, are what users had set."""
    flat: list[Any] = []
    for each in passes:
        if each is None:
            continue
        flat.extend(each if isinstance(each, (list, tuple)) else (each,))
    return tuple(flat) if flat else None


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return what Inductor takes apart while tracing."""
    from torch._inductor.decomposition import select_decomp_table

    return dict(select_decomp_table())


def compile_with_inductor(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    patches: Mapping[str, Any],
    table: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Return what Inductor makes of a graph.

    Args:
        module: the graph as Dynamo made it; Inductor takes it over.
        inputs: what Dynamo traced it with.
        patches: the configuration that holds for it, its backward graph included.
        table: what is taken apart while tracing.
    """
    from torch._inductor.compile_fx import compile_fx

    made: Any = compile_fx(module, inputs, config_patches=dict(patches), decompositions=dict(table))
    run: Callable[..., Any] = made
    return run


def counters() -> Any:
    """Return Inductor's counters; what a compilation adds to them is kept in its cached artefact and added on a hit."""
    from torch._dynamo.utils import counters as found

    return found["inductor"]


@contextlib.contextmanager
def no_new_guards(shape_env: Any) -> Iterator[None]:
    """Let a question about a size that changes raise, where answering would narrow the graph to one answer."""
    if shape_env is None:
        yield
        return
    with shape_env.error_on_new_guards():
        yield


def shape_env_of(value: Any) -> Any:
    """Return what a fake tensor's sizes are known to, or None for a real one."""
    mode = getattr(value, "fake_mode", None)
    return getattr(mode, "shape_env", None)


def fake_mode_of(value: Any) -> Any:
    """Return the mode that made a fake tensor, or None for a real one."""
    return getattr(value, "fake_mode", None)


def compile_id() -> str:
    """Return how Dynamo calls the graph that is being compiled, such as "0/1"; empty outside of it."""
    from torch._guards import CompileContext

    found = CompileContext.current_compile_id()
    return "" if found is None else str(found)


def is_inductor_option(name: str) -> bool:
    """Tell whether Inductor has an option of that name; a dash stands for an underscore, as torch.compile allows."""
    known: bool = name.replace("-", "_") in inductor_config().get_config_copy()
    return known


def mode_options(mode: str | None) -> dict[str, Any]:
    """Return the options of Inductor that a mode of torch.compile stands for.

    Raises:
        RuntimeError: there is no such mode.
    """
    from torch import _inductor

    return dict(_inductor.list_mode_options(mode)) if mode else {}


EXACT: Final = {"emulate_precision_casts": True}
"""The configuration under which Inductor keeps the roundings that a graph asks for."""


def compile_with_aot(module: torch.fx.GraphModule, inputs: Sequence[Any], compiler: Callable[..., Any]) -> Any:
    """Return what a compiler makes of the functional graphs that AOTAutograd makes of one.

    Args:
        module: the graph as Dynamo made it.
        inputs: what it was traced with.
        compiler: takes a graph module, its inputs and `is_inference`; returns what runs it.
    """
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def boxed(*, is_inference: bool) -> Callable[..., Any]:
        """Return the compiler as AOTAutograd takes it."""

        def run(graph_module: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
            """Compile one graph."""
            return make_boxed_func(compiler(graph_module, example, is_inference=is_inference))

        return run

    training = boxed(is_inference=False)
    return aot_autograd(
        fw_compiler=training,
        bw_compiler=training,
        inference_compiler=boxed(is_inference=True),
        keep_inference_input_mutations=True,
    )(module, inputs)


def higher_order_op() -> type:
    """Return the class of operations that take functions, such as a loop."""
    from torch._ops import HigherOrderOperator

    return HigherOrderOperator


def op_overload() -> type:
    """Return the class of what functional graphs call."""
    from torch._ops import OpOverload

    return OpOverload


def schema_of(overload: Any) -> Any:
    """Return the schema of what a functional graph calls."""
    return overload._schema


def storage_of(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's memory, or None for one that has none of its own, such as a sparse one."""
    import torch

    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else None


def symbols_of(size: Any) -> frozenset[str]:
    """Return the names in a symbolic size; none for a known one."""
    import torch

    return frozenset(map(str, size.node.expr.free_symbols)) if isinstance(size, torch.SymInt) else frozenset()


def known_sizes(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Return a tensor's sizes with None for those that are symbolic."""
    return tuple(None if symbols_of(size) else int(size) for size in tensor.shape)
