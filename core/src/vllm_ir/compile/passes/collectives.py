"""PyTorch's functional collectives in a graph: which group they are over, how they are found, put in and counted."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.graph import lines_of, same, value_of
from vllm_ir.errors import BadProcessGroup, NoProcessGroup
from vllm_ir.graphs import NearMiss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import fx

KINDS: Final = ("all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor")
"""The collectives that are counted, as PyTorch names them."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group as a graph sees it: what is in it is a constant of the graph, and so part of a pass's key.

    Attributes:
        name: PyTorch's.
        size: how many ranks are in it.
        rank: that of this process in it.
    """

    name: str
    size: int
    rank: int

    @classmethod
    def of(cls, group: object, *, wanted: str) -> Group:
        """Return the group that a user named.

        Args:
            group: a process group, its name, or a device mesh of one dimension; all ranks when None.
            wanted: who asks.

        Raises:
            NoProcessGroup: torch.distributed is not initialised in this process.
            BadProcessGroup: it is none of these, or this process is not in it.
        """
        import torch.distributed as dist

        if not dist.is_available() or not dist.is_initialized():
            raise NoProcessGroup(wanted=wanted)
        from torch.distributed.device_mesh import DeviceMesh

        found: Any = dist.group.WORLD if group is None else group
        if isinstance(found, str):
            found = _by_name(found, wanted)
        elif isinstance(found, DeviceMesh):
            if found.ndim != 1:
                raise BadProcessGroup(wanted=wanted, got=f"a device mesh of {found.ndim} dimensions")
            found = found.get_group()
        if not isinstance(found, dist.ProcessGroup):
            left_out = found is dist.GroupMember.NON_GROUP_MEMBER
            got = "a group that this process is not in" if left_out else repr(found)
            raise BadProcessGroup(wanted=wanted, got=got)
        return cls(found.group_name, found.size(), found.rank())


def _by_name(name: str, wanted: str) -> Any:
    """Return the process group of a name.

    Raises:
        BadProcessGroup: there is none that this process is in.
    """
    from torch.distributed import distributed_c10d

    resolve: Any = vars(distributed_c10d)["_resolve_process_group"]  # there is no public name
    try:
        return resolve(name)
    except (KeyError, RuntimeError, ValueError):
        raise BadProcessGroup(wanted=wanted, got=f"{name!r}, which names none that this process is in") from None


@dataclass(frozen=True, slots=True)
class Reduction:
    """An all-reduce in a graph.

    Attributes:
        start: the call that begins it.
        wait: the call that waits for it.
        end: whose result is the sum that others read: the wait, or a copy of it.
    """

    start: fx.Node
    wait: fx.Node
    end: fx.Node

    @property
    def source(self) -> Any:
        """What each rank brings."""
        return self.start.args[0]

    @property
    def how(self) -> str:
        """How values are joined, such as "sum"."""
        return str(self.start.args[1])

    @property
    def group(self) -> str:
        """The name of the group."""
        return name_of(self.start.args[2])


def name_of(group: object) -> str:
    """Return the name of a group out of a collective's argument, which is that name or the group itself."""
    return str(getattr(group, "group_name", group))


def functional() -> Any:
    """Return the namespace of the functional collectives, which importing torch.distributed alone does not fill."""
    import torch
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional  # noqa: SLF001 - what compiled graphs call, in every supported version


def reductions(graph: fx.Graph) -> Iterator[Reduction]:
    """Give every all-reduce of a graph that is waited for once, in the graph's order.

    `dist.all_reduce` writes to its argument, which functional graphs show as a copy of the sum over it; the copy's
    value is the sum's where both are alike.
    """
    import torch

    c10d = functional()
    for start in graph.find_nodes(op="call_function", target=c10d.all_reduce.default):
        waits = list(start.users)
        if len(waits) != 1 or waits[0].target is not c10d.wait_tensor.default:
            continue
        end = wait = waits[0]
        users = list(wait.users)
        if len(users) == 1 and users[0].target is torch.ops.aten.copy.default and users[0].args[1] is wait:
            end = users[0] if alike(value_of(users[0]), value_of(wait)) else wait
        yield Reduction(start, wait, end)


def alike(one: Any, other: Any) -> bool:
    """Tell whether two fake tensors have one dtype and shape."""
    return (
        one.dtype == other.dtype
        and one.dim() == other.dim()
        and all(same(size, theirs) for size, theirs in zip(one.shape, other.shape, strict=True))
    )


def insert(
    graph: fx.Graph, target: Any, args: tuple[Any, ...], like: fx.Node, val: Any = None, **kwargs: Any
) -> fx.Node:
    """Call an operation where the graph is inserted into, and return the node, with its fake result.

    Args:
        graph: that of the arguments.
        target: the operation.
        args: its arguments, nodes among them.
        like: the node whose line of the program it comes from.
        val: its fake result, where that is known better than the operation's own fake tells.
        kwargs: arguments by name.
    """
    # Named by the operation alone, as graphs are that PyTorch makes.
    name = str(target).split(".")[1] if "." in str(target) else target.__name__
    node = graph.create_node("call_function", target, args, kwargs, name=name)
    node.meta["val"] = fake_result(node) if val is None else val
    if "stack_trace" in like.meta:
        node.meta["stack_trace"] = like.meta["stack_trace"]
    return node


def fake_result(node: fx.Node) -> Any:
    """Return what a node's operation gives on the fake results of what it reads."""
    import torch

    target: Any = node.target
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), value_of)
    modes = (torch_version.fake_mode_of(value_of(source)) for source in node.all_input_nodes)
    with next((mode for mode in modes if mode is not None), contextlib.nullcontext()), torch.no_grad():
        return target(*args, **kwargs)


class Misses:
    """What a pass looked for and left alone, the same reasons counted together."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], NearMiss] = {}

    def add(self, op: str, node: fx.Node, reason: str) -> None:
        """Note down one.

        Args:
            op: what is called.
            node: the call.
            reason: in words.
        """
        known = self._found.get((op, reason))
        new = NearMiss(op, reason, node=node.name, where=_line_of(node))
        self._found[op, reason] = new if known is None else replace(known, count=known.count + 1)

    def all(self) -> tuple[NearMiss, ...]:
        """Return them in the order in which they were found first."""
        return tuple(self._found.values())


def _line_of(node: fx.Node) -> str:
    """Return the line that a node comes from, the last one outside of torch, as "file:line, in function: code"."""
    import torch

    inside = str(Path(torch.__file__).parent)
    for file, number, function, code in reversed(lines_of(node)):
        if not file.startswith(inside):
            return f"{file}:{number}, in {function}" + (f": {code}" if code else "")
    return ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the collectives of one kind in a graph move.

    Attributes:
        calls: how many there are.
        payload: bytes of the whole tensors that are reduced, scattered or gathered.
        sent: bytes that each rank sends, by a ring: all but its own part once, twice for an all-reduce.
    """

    calls: int
    payload: int
    sent: int


def traffic(graph: fx.Graph) -> dict[str, Traffic]:
    """Return what the collectives of a graph move, by kind; sizes that are open count as when the graph was traced.

    Args:
        graph: with fake results in each node's metadata.
    """
    c10d = functional()
    found: dict[str, Traffic] = {}
    for kind in KINDS:
        nodes = graph.find_nodes(op="call_function", target=getattr(c10d, kind).default)
        payloads = [_bytes_of(node if kind == KINDS[2] else node.all_input_nodes[0]) for node in nodes]
        sent = sum(map(_sent, [kind] * len(nodes), payloads, map(_ranks_of, nodes)))
        if nodes:
            found[kind] = Traffic(len(nodes), sum(payloads), sent)
    return found


def _ranks_of(node: fx.Node) -> int:
    """Return how many ranks take part in a collective."""
    from torch.distributed import distributed_c10d

    group: Any = name_of(node.args[-1])
    return int(distributed_c10d._get_group_size_by_name(group))  # noqa: SLF001 - no public name


def _sent(kind: str, payload: int, size: int) -> int:
    """Return what each rank sends for one collective."""
    return payload * (size - 1) // size * (1 + (kind == KINDS[0]))


def _bytes_of(node: fx.Node) -> int:
    """Return the bytes of a tensor."""
    value = value_of(node)
    sizes: Sequence[int | None] = [torch_sizes.hint_of(size) for size in value.shape]
    return math.prod(size or 0 for size in sizes) * int(value.element_size())
