"""A pattern as a graph: traced once for its form, and again on what a match has found, which tells what it is there."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.graph import storages, tensors_of, value_of
from vllm_ir.compile.judging import batch_sizes
from vllm_ir.compile.passes.reading import Port, Reader, port_of
from vllm_ir.compile.torch_fakes import unlogged
from vllm_ir.compile.tracing import inputs_of, trace
from vllm_ir.compile.writes import writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import fx

    from vllm_ir.compile.tracing import Traced

_NOTHING: Any = object()
"""Stands for no result, since a result may be None."""


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
        TypeError: it returns something that is no tensor.
        Exception: whatever the function raises on fake tensors.
    """
    with quietly(args), unlogged():
        traced = trace(function, args, table)
    nodes = list(traced.module.graph.nodes)
    places = [place for place, value in enumerate(args) if inputs_of([value])]
    holders = [node for node in nodes if node.op == "placeholder"]
    (output,) = (node for node in nodes if node.op == "output")
    results: Any = output.args[0]
    results = results if isinstance(results, (list, tuple)) else (results,)
    strange = next((result for result in traced.results if not tensors_of(result)), _NOTHING)
    if strange is not _NOTHING:
        message = f"it returns {strange!r}, wanted a tensor or a tuple of tensors"
        raise TypeError(message)
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


def joined(replacement: Skeleton, pattern: Skeleton) -> str | None:
    """Return which memory the results of a replacement share where those of the pattern do not, or None.

    What holds a result may be written to, and so may what the pattern was given.
    """
    wanted = [storages(result) for result in tensors_of(pattern.traced.results)]
    found = [storages(result) for result in tensors_of(replacement.traced.results)]
    if returns_views(replacement):
        return "returns what it is given, or a view of it, and its pattern returns new memory"
    for (one, mine), (other, theirs) in itertools.combinations(enumerate(found), 2):
        if mine & theirs and not wanted[one] & wanted[other]:
            return f"returns results {one} and {other} in one memory, and its pattern in two"
    return None


def writer(skeleton: Skeleton, reader: Reader) -> tuple[str, str] | None:
    """Return the first operation that writes to a tensor, by its short name, and what to write instead; or None."""
    import torch

    node = next((node for node, _ in writes(skeleton.traced.module.graph)), None)
    if node is None:
        return None
    op = reader.op(node)
    if op is not None:
        return f"{op.name}.maybe_inplace", f"Write {op.name}."
    name = reader.label(node)
    plain = name.removesuffix("_")
    if hasattr(torch.Tensor, plain):
        return name, f"Write {plain}."
    return name, f"Write what returns a new tensor instead of writing with {name}."
