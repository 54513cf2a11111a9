"""An implementation as a graph: run once on fake tensors for each kind of arguments, and copied into the graph.

Tracing costs milliseconds and a model calls an op in every layer with the same kind of arguments, so what was traced is
kept, but for one graph only: symbolic sizes mean nothing outside of it.
"""

from __future__ import annotations

import contextlib
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_version
from vllm_ir.compile.graph import storages, tensors_of, value_of
from vllm_ir.compile.torch_fakes import twin, view_twin
from vllm_ir.memory import storage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx


@dataclass(frozen=True, slots=True)
class Traced:
    """An implementation as a graph.

    Attributes:
        module: its graph, whose placeholders stand for the arguments that are tensors or symbolic numbers, in order.
        several: whether it returns several results.
        results: the fake results.
        once: it makes sizes that depend on data, which are another's in every copy.
        shared: by node, whether its results lie apart, and in the memory of which of its inputs; filled when asked for.
    """

    module: fx.GraphModule
    several: bool
    results: tuple[Any, ...]
    once: bool = False
    shared: dict[fx.Node, tuple[bool, list[int]]] = field(default_factory=dict)


def describe(value: Any) -> object:
    """Return what tracing may depend on in an argument; equal for arguments that one trace serves."""
    import torch

    if isinstance(value, torch.Tensor):
        sizes = (tuple(map(str, value.shape)), tuple(map(str, value.stride())), str(value.storage_offset()))
        return ("tensor", *sizes, value.dtype, value.device, value.layout, type(value).__name__)
    if isinstance(value, (list, tuple)):
        return tuple(describe(item) for item in value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return ("symbol", str(value))
    # As text: zeros of both signs are equal otherwise, and NaN is not.
    return (type(value).__name__, repr(value) if isinstance(value, (float, complex)) else value)


def sharing(args: Sequence[Any]) -> tuple[object, ...]:
    """Return which arguments share memory with which, as a trace may depend on it."""
    import torch

    seen: dict[int, int] = {}
    found = [storage_of(value) for value in _leaves(args) if isinstance(value, torch.Tensor)]
    return tuple(None if storage is None else seen.setdefault(storage, len(seen)) for storage in found)


def trace(function: Callable[..., Any], args: Sequence[Any], table: Mapping[Any, Callable[..., Any]]) -> Traced:
    """Return an implementation as a graph of torch's own ops.

    Args:
        function: takes the op's arguments by position.
        args: fake tensors and numbers.
        table: what to take apart while tracing.

    Raises:
        Exception: whatever the function raises on fake tensors.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    leaves = inputs_of(args)
    tensors = [value for value in leaves if isinstance(value, torch.Tensor)]
    mode = next((m for m in map(torch_version.fake_mode_of, tensors) if m is not None), None)
    several = False
    results: tuple[Any, ...] = ()

    def run(*given: Any) -> Any:
        """Run the implementation on what stands for the tensors."""
        nonlocal several, results
        supply = iter(given)
        result = function(*(_fill(value, supply) for value in args))
        several = isinstance(result, (tuple, list))
        results = tuple(result) if several else (result,)
        return result

    with mode or contextlib.nullcontext(), torch.no_grad():
        # An object that came twice would be one input of the trace.
        leaves = [
            _again(value) if any(value is other for other in leaves[:i]) else value for i, value in enumerate(leaves)
        ]
        module = make_fx(run, decomposition_table=dict(table))(*leaves)
    return Traced(module, several, results, any("unbacked_bindings" in node.meta for node in module.graph.nodes))


def splice(
    graph: fx.Graph, node: fx.Node, traced: Traced, args: Sequence[Any], *, first: bool
) -> tuple[list[fx.Node], list[Any]]:
    """Copy a trace into a graph before a node.

    Args:
        graph: where it goes.
        node: what it stands for.
        traced: the implementation.
        args: the op's arguments, nodes among them.
        first: whether it was traced with the fake results of these arguments; those of others are not theirs.

    Returns:
        the nodes that were added in order, and the results.
    """
    inputs = inputs_of(args)
    supply = iter(inputs)
    known = _sizes(graph)
    made: dict[fx.Node, Any] = {}
    added: list[fx.Node] = []
    result: Any = None
    with graph.inserting_before(node):
        for inner in traced.module.graph.nodes:
            if inner.op == "placeholder":
                made[inner] = next(supply)
            elif inner.op == "output":
                result = _map(inner.args[0], made)
            elif inner.op == "get_attr":
                made[inner] = _constant(graph, traced.module, inner)
                added.append(made[inner])
            elif (size := known.get(_symbol(value_of(inner)))) is not None and reads_size(inner):
                made[inner] = size
            else:
                new = graph.node_copy(inner, lambda found: made[found])
                for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "original_aten"):
                    if key in node.meta:
                        new.meta[key] = node.meta[key]
                made[inner] = new
                added.append(new)
                if not first:
                    # Fake results of its own: those of the trace lie in the memory of another call's.
                    _renew(new, inner, traced)
    return added, list(result) if traced.several else [result]


def _again(value: Any) -> Any:
    """Return another object for the same tensor, in the same memory."""
    import torch

    return value.detach() if isinstance(value, torch.Tensor) else value


def refresh_views(graph: fx.Graph) -> None:
    """Let the fake results of views lie in the memory of what they are views of now."""
    for node in graph.nodes:
        parent: Any = node.args[0] if node.args else None
        if node.op != "call_function" or not tensors_of(value_of(node)) or not hasattr(parent, "meta"):
            continue
        if node.target is operator.getitem:
            if value_of(parent)[node.args[1]] is not value_of(node):
                node.meta["val"] = value_of(parent)[node.args[1]]
        elif isinstance(node.target, torch_version.op_overload()):
            marked = any(result.alias_info for result in torch_version.schema_of(node.target).returns)
            if marked and not _memory(node) & _memory(parent):
                refresh(node)


def _memory(node: Any) -> frozenset[int]:
    """Return the memory of a node's results."""
    return frozenset(memory for tensor in tensors_of(value_of(node)) for memory in storages(tensor))


def _renew(node: fx.Node, inner: fx.Node, traced: Traced) -> None:
    """Give a copy of a trace's node a fake result of its own.

    Running the operation again takes most of the time that lowering takes, so that is left to what is neither in memory
    of its own nor one view of one argument.
    """
    import torch

    value = value_of(inner)
    tensors = tensors_of(value)
    if not tensors:
        return
    if inner not in traced.shared:
        mine = _memory(inner)
        found = [place for place, source in enumerate(inner.all_input_nodes) if mine & _memory(source)]
        traced.shared[inner] = (len(mine) == len(tensors), found)
    distinct, sources = traced.shared[inner]
    twins: list[Any] | None = None
    if not sources and distinct:
        twins = [twin(tensor) for tensor in tensors]
    elif len(sources) == 1 and value is tensors[0] and len(node.all_input_nodes) == len(inner.all_input_nodes):
        base = value_of(node.all_input_nodes[sources[0]])
        # The memory of a list is not that of one tensor.
        twins = [view_twin(value, base)] if isinstance(base, torch.Tensor) else None
    if twins is None or any(each is None for each in twins):
        refresh(node)
    elif isinstance(value, torch.Tensor):
        node.meta["val"] = twins[0]
    elif len(twins) == len(value):
        kind: Any = type(value)
        node.meta["val"] = kind(twins)
    else:
        refresh(node)


def refresh(node: fx.Node) -> None:
    """Give a node the fake result that its operation has on those of its arguments."""
    import torch

    if not isinstance(node.target, torch_version.op_overload()):
        return
    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
    mode = next((m for m in map(torch_version.fake_mode_of, _leaves([value_of(node)])) if m is not None), None)
    if mode is not None:
        with mode, torch.no_grad():
            node.meta["val"] = target(*args, **kwargs)


def _map(value: Any, made: Mapping[fx.Node, Any]) -> Any:
    """Return a trace's result with the graph's own nodes in it."""
    import torch

    if isinstance(value, torch.fx.Node):
        return made[value]
    if isinstance(value, (list, tuple)):
        return [_map(item, made) for item in value]
    return value


def inputs_of(args: Sequence[Any]) -> list[Any]:
    """Return what a trace takes of arguments, one by one: tensors and open sizes, or the nodes that stand for them."""
    return [value for value in _leaves(args) if _is_symbolic(value)]


def _leaves(args: Sequence[Any]) -> list[Any]:
    """Return arguments with lists of them flattened."""
    found: list[Any] = []
    for value in args:
        found.extend(_leaves(value) if isinstance(value, (list, tuple)) else (value,))
    return found


def _is_symbolic(value: Any) -> bool:
    """Tell whether a trace takes a value as an input; all others are part of it."""
    import torch

    return isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, torch.fx.Node))


def _fill(value: Any, supply: Any) -> Any:
    """Return an argument with the next inputs in the place of what is symbolic."""
    if isinstance(value, (list, tuple)):
        return [_fill(item, supply) for item in value]
    return next(supply) if _is_symbolic(value) else value


def _symbol(value: Any) -> str | None:
    """Return the expression of a symbolic whole number."""
    import torch

    return str(value.node.expr) if isinstance(value, torch.SymInt) else None


def reads_size(node: fx.Node) -> bool:
    """Tell whether a node only reads a size of a tensor."""
    import torch

    return node.target in (torch.ops.aten.sym_size.int, torch.ops.aten.sym_stride.int)


def _sizes(graph: fx.Graph) -> dict[str | None, fx.Node]:
    """Return the graph's inputs that are sizes, by expression: Inductor knows those and need not read them off."""
    return {
        symbol: node for node in graph.find_nodes(op="placeholder") if (symbol := _symbol(value_of(node))) is not None
    }


def _constant(graph: fx.Graph, module: fx.GraphModule, node: fx.Node) -> fx.Node:
    """Return a node for a tensor that the implementation made while it was traced."""
    value = getattr(module, str(node.target))
    owner: Any = graph.owning_module
    name, number = "_vllm_ir_constant", 0
    while hasattr(owner, f"{name}{number}"):
        number += 1
    owner.register_buffer(f"{name}{number}", value, persistent=False)
    new = graph.get_attr(f"{name}{number}")
    new.meta.update(node.meta)
    return new
