"""What passes ask of a graph's nodes: which is an op's call, what its result is like, and where a user wrote it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import dynamo, torch_sizes
from vllm_ir.memory import storage_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch import fx

    from vllm_ir.op import IrOp


METADATA: Final = frozenset(
    {"size", "stride", "dim", "ndim", "numel", "nelement", "storage_offset", "element_size", "is_contiguous", "shape"}
    | {"dtype", "device", "layout"}
)
"""Methods and attributes of a tensor that do not depend on its values."""

GENERATED: Final = '"<vllm_ir '
"""How the names of functions begin that were made from text: no user wrote those lines."""


def value_of(node: fx.Node) -> Any:
    """Return a node's fake result, None where nothing is known of it.

    Graphs call it "example_value" before AOTAutograd and "val" behind it.
    """
    return node.meta.get("val", node.meta.get("example_value"))


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a node's result."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def storages(tensor: torch.Tensor) -> frozenset[int]:
    """Return the identity of a tensor's memory; empty for one that has none of its own, such as a sparse one."""
    found = storage_of(tensor)
    return frozenset() if found is None else frozenset({found})


def contiguous(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor lies in memory row by row without gaps, asking nothing about sizes that are open."""
    # Where a size is one, or nothing at all is there, strides mean nothing.
    if any(same(size, 0) for size in tensor.shape):
        return True
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not same(size, 1) and not same(stride, expected):
            return False
        expected = expected * size
    return True


def same(size: Any, other: Any) -> bool:
    """Tell whether two sizes are the same whatever those that are open turn out to be, asking nothing about them."""
    return str(size) == str(other) or torch_sizes.surely_equal(size, other)


def subgraphs(module: fx.GraphModule) -> Iterator[tuple[str, fx.GraphModule]]:
    """Return the graphs that a graph calls, such as the branches of a condition, with their names; innermost first."""
    import torch

    seen: set[str] = set()
    for node in module.graph.nodes:
        name = str(node.target)
        if node.op != "get_attr" or name in seen:
            continue
        seen.add(name)
        inner = getattr(module, name, None)
        if isinstance(inner, torch.fx.GraphModule):
            for path, each in subgraphs(inner):
                yield f"{name}.{path}", each
            yield name, inner


def calls_of(ops: Mapping[str, IrOp]) -> dict[object, tuple[IrOp, bool]]:
    """Return what graphs call for each op, and whether that donates the activations."""
    found: dict[object, tuple[IrOp, bool]] = {}
    for op in ops.values():
        found[op.torch_op] = (op, False)
        # Graphs before AOTAutograd hold the op without its overload.
        found[op.torch_op.overloadpacket] = (op, False)
        inplace = getattr(op, "maybe_inplace", None)
        if inplace is not None:
            found[inplace.torch_op] = (op, True)
    return found


def arguments_of(node: fx.Node, op: IrOp) -> tuple[Any, ...]:
    """Return all arguments of an op's call by position, nodes among them, defaults filled in.

    Raises:
        WrongCall: they do not fit the op's signature.
    """
    return op.bind(node.args, node.kwargs)


def fake_arguments(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return arguments with the fake result in place of each node."""
    import torch

    # A map over immutable lists would make them lists of fx's own, which schemas do not take.
    def convert(value: Any) -> Any:
        """Return one argument."""
        if isinstance(value, torch.fx.Node):
            return value_of(value)
        if isinstance(value, (list, tuple)):
            return [convert(item) for item in value]
        return value

    return tuple(convert(value) for value in args)


def lines_of(node: fx.Node) -> list[tuple[str, str, str, str]]:
    """Return file, line, function and code of each frame that a node comes from, outermost first."""
    lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    found: list[tuple[str, str, str, str]] = []
    for index, line in enumerate(lines):
        if not line.startswith("File ") or line.startswith(GENERATED, 5):
            continue
        file, _, rest = line[5:].partition(", line ")
        number, _, function = rest.partition(", in ")
        code = lines[index + 1] if index + 1 < len(lines) and not lines[index + 1].startswith("File ") else ""
        found.append((file.strip('"'), number, function, code))
    return found


def source_of(node: fx.Node) -> str:
    """Return the user's line that a node comes from, as "file:line, in function: code"; empty where it is not known."""
    file, number, function, code = next(reversed(lines_of(node)), ("", "", "", ""))
    return f"{file}:{number}, in {function}" + (f": {code}" if code else "") if file else ""


def place_of(graph: fx.Graph) -> str:
    """Return the first line of a program that a graph comes from, as "file:line, in function"; empty for none."""
    for node in graph.nodes:
        for file, number, function, _ in lines_of(node):
            if file != dynamo.__file__:  # before torch 2.13 there is a frame of ours around every program
                return f"{file}:{number}, in {function}"
    return ""


def results_of(node: fx.Node, results: Sequence[Any]) -> list[tuple[fx.Node, Any]]:
    """Return each node that reads a result of an op's call, or the call itself, with the result that it reads.

    A result may be a list of tensors, which is read item by item.
    """
    if not isinstance(value_of(node), (tuple, list)):
        return [(node, results[0])]
    found: list[tuple[fx.Node, Any]] = []
    for user in node.users:
        if user.target is operator.getitem:
            result = results[int(user.args[1])]  # type: ignore[arg-type]
            found += results_of(user, result) if isinstance(result, list) else [(user, result)]
    return found
