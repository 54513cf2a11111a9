"""A pattern as a graph: traced once for its form, and again on what a match has found, which tells what it is there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.graph import storages, tensors_of, value_of
from vllm_ir.compile.judging import batch_sizes
from vllm_ir.compile.passes.reading import Port, Reader, port_of
from vllm_ir.compile.tracing import inputs_of, trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from vllm_ir.compile.tracing import Traced


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A function of tensors as a graph.

    Attributes:
        traced: the graph.
        parameters: by the node that stands for a parameter, the parameter's position.
        calls: its operations in order.
        outputs: its results.
    """

    traced: Traced
    parameters: Mapping[fx.Node, int]
    calls: tuple[fx.Node, ...]
    outputs: tuple[Port, ...]

    def anchor(self, reader: Reader) -> fx.Node | None:
        """Return the last call of an op; None where there is none."""
        return next((node for node in reversed(self.calls) if reader.op(node) is not None), None)


def draw(
    function: Callable[..., Any], args: Sequence[Any], table: Mapping[Any, Callable[..., Any]], reader: Reader
) -> Skeleton:
    """Return a function as a graph.

    Args:
        function: takes the arguments by position.
        args: fake tensors, None in the place of those that are left out, and plain values.
        table: what is taken apart while tracing.
        reader: reads its nodes.

    Raises:
        Exception: whatever the function raises on fake tensors.
    """
    with quietly(args):
        traced = trace(function, args, table)
    nodes = list(traced.module.graph.nodes)
    places = [place for place, value in enumerate(args) if inputs_of([value])]
    holders = [node for node in nodes if node.op == "placeholder"]
    (output,) = (node for node in nodes if node.op == "output")
    results: Any = output.args[0]
    results = results if isinstance(results, (list, tuple)) else (results,)
    calls = tuple(node for node in nodes if node.op == "call_function" and reader.read(node) is not None)
    return Skeleton(traced, dict(zip(holders, places, strict=True)), calls, tuple(map(port_of, results)))


@contextlib.contextmanager
def quietly(args: Sequence[Any]) -> Iterator[None]:
    """Let no question that is asked on fake arguments narrow the graph to one batch."""
    sizes = next((torch_version.shape_env_of(tensor) for tensor in tensors_of(tuple(args))), None)
    with torch_version.no_guards_on(sizes, batch_sizes(args)), torch_sizes.forgetting_sizes(sizes):
        yield


def returns_views(skeleton: Skeleton) -> bool:
    """Tell whether a result lies in the memory of a parameter."""
    given = {s for node in skeleton.parameters for tensor in tensors_of(value_of(node)) for s in storages(tensor)}
    return any(given & storages(tensor) for tensor in tensors_of(skeleton.traced.results))
