"""What differs between the versions of torch that are supported, and what of torch has no public name.

Everything else in this package is written against this module.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from vllm_ir.compile import torch_passes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch


class Watch(Protocol):
    """What is told of each functional graph that a compiler makes."""

    def __call__(self, *, backward: bool) -> AbstractContextManager[None]:
        """Return what is entered while a graph is made."""


def inductor_config() -> Any:
    """Return Inductor's configuration."""
    from torch._inductor import config

    return config


def decompositions(patches: Mapping[str, Any] | None = None) -> dict[Any, Callable[..., Any]]:
    """Return what Inductor takes apart while tracing.

    Args:
        patches: the configuration that it is asked under; random numbers as in eager, and in torch 2.11 exact
            roundings, leave operations whole.
    """
    from torch._inductor.decomposition import select_decomp_table

    with inductor_config().patch(dict(patches or {})):
        return dict(select_decomp_table())


def compile_with_inductor(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    patches: Mapping[str, Any],
    table: Mapping[Any, Callable[..., Any]],
    watch: Watch,
) -> Callable[..., Any]:
    """Return what Inductor makes of a graph.

    Args:
        module: the graph as Dynamo made it; Inductor takes it over.
        inputs: what Dynamo traced it with.
        patches: the configuration that holds for it, its backward graph included.
        table: what is taken apart while tracing.
        watch: entered while each functional graph is compiled or taken from the cache of those.
    """
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    asked = torch_passes.Decompositions(table)

    def compile_one(*args: Any, **kwargs: Any) -> Any:
        """Compile one functional graph."""
        if "get_decomp_fn" in kwargs:
            kwargs["get_decomp_fn"] = asked
        is_inference = bool(kwargs.get("is_inference", False))
        with watch(backward=bool(kwargs.get("is_backward", False))), torch_passes.compiling(is_inference=is_inference):
            return compile_fx_inner(*args, **kwargs)

    made: Any = compile_fx(
        module, inputs, inner_compile=compile_one, config_patches=dict(patches), decompositions=asked()
    )
    run: Callable[..., Any] = made
    return run


def counters() -> Any:
    """Return Inductor's counters; what a compilation adds to them is kept in its cached artefact and added on a hit."""
    from torch._dynamo.utils import counters as found

    return found["inductor"]


def cache_counts() -> dict[str, int]:
    """Return how often each of torch's caches of compiled graphs said what, such as "FxGraphCache hit"."""
    from torch._dynamo.utils import counters as found

    places = (("FxGraphCache", "inductor", "fxgraph_cache"), ("AOTAutogradCache", "aot_autograd", "autograd_cache"))
    return {
        f"{cache} {what}": found[group][f"{prefix}_{what}"]
        for cache, group, prefix in places
        for what in ("hit", "miss", "bypass")
    }


@contextlib.contextmanager
def no_new_guards(shape_env: Any) -> Iterator[None]:
    """Let a question about a size that changes raise, where answering would narrow the graph to one answer."""
    if shape_env is None:
        yield
    elif hasattr(shape_env, "error_on_new_guards"):
        with shape_env.error_on_new_guards():
            yield
    else:
        with _checked(shape_env, _refuse_guard):
            yield


@contextlib.contextmanager
def _checked(shape_env: Any, check: Callable[[Any, Any], None]) -> Iterator[None]:
    """Call something in the place where torch would go on to add a guard."""
    before = vars(shape_env).get("_check_frozen")
    shape_env._check_frozen = check
    try:
        yield
    finally:
        if before is None:
            del shape_env._check_frozen
        else:
            shape_env._check_frozen = before


class NewGuardError(RuntimeError):
    """Stands in torch 2.11 for what newer versions raise where a guard would be added."""


def _refuse_guard(expression: object, value: object) -> None:
    """Raise in the place where torch would go on to add a guard."""
    raise NewGuardError(f"Guard attempted where none may be added: {expression} == {value}")


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


def honours_roundings(device_type: str) -> bool:
    """Tell whether Inductor keeps, under `EXACT`, every rounding that a graph asks for on a device.

    Its C++ kernels for the CPU drop those between two operations of one kernel before torch 2.13, whatever they are
    told. Of devices that are not torch's own nothing is known.

    Args:
        device_type: torch's name of the device.
    """
    return device_type in ("cuda", "xpu") or (device_type == "cpu" and version() >= (2, 13))


def version() -> tuple[int, int]:
    """Return major and minor version of torch."""
    import torch

    major, minor, *_ = str(torch.__version__).split(".")
    return int(major), int(minor)


def compile_with_aot(module: torch.fx.GraphModule, inputs: Sequence[Any], compiler: Callable[..., Any]) -> Any:
    """Return what a compiler makes of the functional graphs that AOTAutograd makes of one.

    Args:
        module: the graph as Dynamo made it.
        inputs: what it was traced with.
        compiler: takes a graph module, its inputs, `is_inference` and `backward`; returns what runs it.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    def boxed(*, is_inference: bool, backward: bool = False) -> Callable[..., Any]:
        """Return the compiler as AOTAutograd takes it."""

        def run(graph_module: torch.fx.GraphModule, example: Sequence[Any]) -> Any:
            """Compile one graph."""
            made = compiler(graph_module, example, is_inference=is_inference, backward=backward)
            # What takes its inputs in a list already, such as what Inductor makes, says so.
            return made if getattr(made, "_boxed_call", False) else make_boxed_func(made)

        return run

    return aot_autograd(
        fw_compiler=boxed(is_inference=False),
        bw_compiler=boxed(is_inference=False, backward=True),
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


def symbols_of(size: Any) -> frozenset[str]:
    """Return the names in a symbolic size; none for a known one."""
    import torch

    return frozenset(map(str, size.node.expr.free_symbols)) if isinstance(size, torch.SymInt) else frozenset()


def known_sizes(tensor: torch.Tensor) -> tuple[int | None, ...]:
    """Return a tensor's sizes with None for those that are symbolic."""
    return tuple(None if symbols_of(size) else int(size) for size in tensor.shape)


@contextlib.contextmanager
def no_guards_on(shape_env: Any, names: frozenset[str]) -> Iterator[None]:
    """Let a question raise whose answer depends on these sizes alone; what torch asks about layouts goes through.

    Args:
        shape_env: what knows the sizes, or None.
        names: of the sizes that change from call to call.
    """
    if shape_env is None or not names:
        yield
        return
    original = shape_env._check_frozen

    def refuse(expression: Any, value: Any) -> None:
        """Raise in the place where torch would go on to add a guard."""
        found = set(map(str, expression.free_symbols))
        if found and found <= names:
            raise NewGuardError(f"{expression} == {value}")
        original(expression, value)

    with _checked(shape_env, refuse):
        yield
