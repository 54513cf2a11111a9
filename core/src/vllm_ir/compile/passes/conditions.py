"""What a fusion asks of a match by default, each answered by None or by a sentence that says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir import dispatch
from vllm_ir.compile import torch_sizes, torch_version
from vllm_ir.compile.aliases import Aliases
from vllm_ir.compile.graph import contiguous, fake_arguments, same, tensors_of, value_of
from vllm_ir.compile.passes.reading import VIEW, Port, port_of, ports_of
from vllm_ir.compile.tracing import reads_size
from vllm_ir.compile.writes import writes
from vllm_ir.errors import BadFusion, IrError
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import fx

    from vllm_ir.compile.passes.matching import Match
    from vllm_ir.compile.passes.reading import Reader
    from vllm_ir.compile.passes.skeleton import Skeleton
    from vllm_ir.compile.plan import Plan
    from vllm_ir.op import IrOp


def tensors(names: Sequence[str], example: Sequence[Any], values: Sequence[Any], strided: Sequence[str]) -> str | None:
    """Return why these tensors are not of the example's kind: dtypes that were equal are not, or rows have gaps."""
    import torch

    first: dict[torch.dtype, tuple[str, torch.dtype]] = {}
    device: tuple[str, torch.device] | None = None
    for name, like, value in zip(names, example, values, strict=True):
        if not isinstance(like, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        other, dtype = first.setdefault(like.dtype, (name, value.dtype))
        if value.dtype != dtype:
            return f"{name!r} is {_word(value.dtype)} where {other!r} is {_word(dtype)}"
        device = device or (name, value.device)
        if value.device != device[1]:
            return f"{name!r} is on {value.device} where {device[0]!r} is on {device[1]}"
        if name not in strided and not contiguous(value):
            return f"{name!r} is not contiguous: it is a slice of rows, or turned"
    return None


def users(skeleton: Skeleton, match: Match, reader: Reader) -> str | None:
    """Return who else reads a value between the pattern's calls, or None; the size of a view is no value."""
    inside = {holder for node in match.calls.values() for nodes in ports_of(node).values() for holder in nodes}
    inside |= set(match.calls.values())
    for wanted, node in match.calls.items():
        call = reader.read(node)
        is_view = call is not None and call.kind == VIEW
        for index, holders in ports_of(node).items():
            if Port(wanted, index) in skeleton.outputs:
                continue
            outside = (user for holder in holders for user in holder.users if user not in inside)
            other = next((user for user in outside if not (is_view and reads_size(user))), None)
            if other is not None:
                which = "" if index is None else f" {index}"
                return f"result{which} of {reader.label(node)} is also read by {reader.label(other)}"
    return None


def results(skeleton: Skeleton, match: Match) -> list[tuple[int, list[fx.Node]]]:
    """Return for each result of a pattern the nodes that hold it; one that nobody wants is left out."""
    found: list[tuple[int, list[fx.Node]]] = []
    for number, port in enumerate(skeleton.outputs):
        node = match.calls.get(port.node)
        holders = [] if node is None else ports_of(node).get(port.which, [])
        if holders:
            found.append((number, holders))
    return found


def place(skeleton: Skeleton, match: Match) -> fx.Node | None:
    """Return the node before which all that is read is there and no result is yet asked for, or None."""
    inside = set(match.calls.values())
    readers = [user for _, holders in results(skeleton, match) for holder in holders for user in holder.users]
    found = min([*(user for user in readers if port_of(user).node not in inside), max(inside)])
    return found if all(value < found for value in match.args if hasattr(value, "users")) else None


def written(graph: fx.Graph, match: Match) -> str | None:
    """Return what is written to between the pattern's calls, or None."""
    between = [
        (writer, value)
        for writer, value in writes(graph)
        if min(match.calls.values()) < writer < max(match.calls.values())
    ]
    if not between:
        return None
    aliases = Aliases(graph)
    nodes = [value for value in match.args if hasattr(value, "users")]
    nodes += [holder for node in match.calls.values() for held in ports_of(node).values() for holder in held]
    memory = {root for node in nodes for root in aliases.roots(node)}
    found = next((writer for writer, value in between if memory & aliases.roots(value)), None)
    return None if found is None else f"{found.name!r} writes in between to memory that is read"


def asked(name: str, predicates: Sequence[Callable[..., Any]], values: Sequence[Any]) -> str | None:
    """Return why a predicate of the author's refuses, or None.

    Args:
        name: of the fusion.
        predicates: its own conditions.
        values: the arguments by position.

    Raises:
        BadFusion: one raises, or returns neither a bool nor Unsupported.
    """
    sizes = next((torch_version.shape_env_of(tensor) for tensor in tensors_of(tuple(values))), None)
    fix = "Let it return a bool or Unsupported(sentence)."
    for predicate in predicates:
        called = getattr(predicate, "__name__", repr(predicate))
        try:
            with torch_version.no_new_guards(sizes), torch_sizes.forgetting_sizes(sizes):
                answer: object = predicate(*values)
        except Exception as error:
            if "Guard" in type(error).__name__:
                return f"{called} asks for a size that this graph leaves open ({torch_sizes.question_in(str(error))})"
            raise BadFusion(name=name, problem=f"its condition {called} raised {said(error)}", fix=fix) from error
        if answer is True:
            continue
        if isinstance(answer, Unsupported):
            return answer.reason
        if type(answer).__name__ == "SymBool":
            return f"{called} asks for a size that this graph leaves open ({answer})"
        if answer is False:
            return f"{called} says no"
        raise BadFusion(name=name, problem=f"its condition {called} returned {answer!r}", fix=fix)
    return None


def overruled(plan: Plan, parts: Sequence[IrOp], made: Sequence[tuple[IrOp, tuple[Any, ...]]]) -> str | None:
    """Return which provider, named by a user for a part, would no longer run, or None.

    Args:
        plan: who may run what.
        parts: the pattern's ops.
        made: the replacement's ops with their fake arguments.
    """
    for part in parts:
        named = _named(plan, part)
        if named is None:
            continue
        for op, args in made:
            if op in parts or _named(plan, op) is not None:
                continue  # what runs it was said for itself
            runs = _selected(plan, op, args)
            if runs != named:
                why = "nobody" if runs is None else repr(runs)
                return f"a user named {named!r} for {part.name}, and {why} would run {op.name}"
    return None


def calls_of_ops(skeleton: Skeleton, reader: Reader) -> list[tuple[IrOp, tuple[Any, ...]]]:
    """Return the ops that a graph calls, with their fake arguments."""
    found: list[tuple[IrOp, tuple[Any, ...]]] = []
    for node in skeleton.calls:
        op = reader.op(node)
        if op is not None:
            found.append((op, fake_arguments(op.bind(node.args, node.kwargs))))
    return found


def kinds(skeleton: Skeleton, drawn: Skeleton, match: Match) -> str | None:
    """Return which result of a replacement is of another kind than the graph's, or None.

    Args:
        skeleton: the pattern.
        drawn: the replacement on what was found.
        match: what was found.
    """
    if len(drawn.outputs) != len(skeleton.outputs):
        return f"the replacement has {len(drawn.outputs)} results, wanted {len(skeleton.outputs)}"
    for number, holders in results(skeleton, match):
        wanted, found = value_of(holders[0]), drawn.traced.results[number]
        if not _alike(wanted, found):
            return f"result {number} of the replacement is {_kind(found)}, wanted {_kind(wanted)}"
    return None


def types(skeleton: Skeleton) -> list[str]:
    """Return the dtype of each result."""
    return [_word(result.dtype) for result in skeleton.traced.results]


def said(error: Exception) -> str:
    """Return what an exception says, in one line without a stop."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, IrError) else f"{type(error).__name__}: {text}"


def _named(plan: Plan, op: IrOp) -> str | None:
    """Return the provider that a user put first for an op, or None."""
    first = next(iter(plan.orders.get(op.name, ())), None)
    return first.entry.provider if first is not None and first.entry.layer.named else None


def _selected(plan: Plan, op: IrOp, args: tuple[Any, ...]) -> str | None:
    """Return who would run an op, or None for nobody."""
    sizes = next((torch_version.shape_env_of(tensor) for tensor in tensors_of(args)), None)
    for candidate in plan.orders.get(op.name, ()):
        if candidate.impl is None or candidate.refusal is not None:
            continue
        with torch_version.no_new_guards(sizes), torch_sizes.forgetting_sizes(sizes):
            if dispatch.judge(candidate.impl, args) is None:
                return candidate.entry.provider
    return None


def _alike(one: Any, other: Any) -> bool:
    """Tell whether two results are tensors of one dtype, shape and layout."""
    if not hasattr(one, "stride") or not hasattr(other, "stride"):
        return type(one) is type(other)
    sizes, others = ((*value.shape, *value.stride()) for value in (one, other))
    return one.dtype == other.dtype and one.dim() == other.dim() and all(map(same, sizes, others))


def _kind(value: Any) -> str:
    """Return dtype, shape and strides of a result as text."""
    if not hasattr(value, "stride"):
        return type(value).__name__
    sizes, strides = (", ".join(map(str, each)) for each in (value.shape, value.stride()))
    return f"{_word(value.dtype)}[{sizes}] with strides [{strides}]"


def _word(value: object) -> str:
    """Return a dtype without torch's name before it."""
    return str(value).removeprefix("torch.")
