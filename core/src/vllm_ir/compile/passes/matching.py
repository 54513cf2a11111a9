"""Where a pattern stands in a graph, and where it nearly does: every answer that is no match is a sentence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir.compile.graph import same, tensors_of, value_of
from vllm_ir.compile.passes.plain import argument, equal, shape, short
from vllm_ir.compile.passes.reading import CAST, VIEW, Call, Reader, Symbol, is_tensor, port_of, ports_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from vllm_ir.compile.passes.reading import Port
    from vllm_ir.compile.passes.skeleton import Skeleton

PAIR = 2
"""How many arguments a call needs at least for two to be exchanged."""

UNSET: Any = object()
"""Stands for a parameter that nothing is bound to yet, since None may be."""


@dataclass(slots=True)
class Match:
    """What a pattern's parts are in a graph.

    Attributes:
        calls: the graph's node by the pattern's.
        args: what is bound to each parameter: a node, None, or a plain value.
    """

    calls: dict[fx.Node, fx.Node] = field(default_factory=dict)
    args: list[Any] = field(default_factory=list)

    def size(self) -> tuple[int, int]:
        """Return how many calls, and how many tensors, were found."""
        return len(self.calls), sum(map(is_tensor, self.args))

    def settle(self, names: Sequence[str]) -> str | None:
        """Let numbers that the graph leaves open be the nodes that hold them, and return which has none, or None."""
        for place, value in enumerate(self.args):
            if isinstance(value, Symbol):
                if value.node is None:
                    return names[place]
                self.args[place] = value.node
        return None


class Matcher:
    """Holds a pattern against one place of a graph.

    Args:
        skeleton: the pattern.
        names: of its parameters.
        example: what it was drawn with.
        free: names of parameters that take whatever stands in the graph.
        reader: reads nodes.
        anchor: the pattern's last call of an op.
    """

    def __init__(
        self,
        skeleton: Skeleton,
        names: Sequence[str],
        example: Sequence[Any],
        free: Sequence[str],
        reader: Reader,
        anchor: fx.Node,
    ) -> None:
        self._skeleton = skeleton
        self._names = names
        self._example = example
        self._free = free
        self._reader = reader
        self._anchor = anchor
        self._match = Match()
        self._unlike: dict[fx.Node, str] = {}  # why a call of the same kind is not the pattern's

    def match(self, node: fx.Node) -> tuple[Match, str | None]:
        """Return what was found around a node that calls what the anchor calls, and why that is no match, or None."""
        tensors = set(self._skeleton.parameters.values())
        self._match = Match(
            args=[
                UNSET if place in tensors or name in self._free else self._example[place]
                for place, name in enumerate(self._names)
            ]
        )
        self._unlike = {}
        reason = self._call(self._anchor, node) or self._others()
        missing = next((p for p, place in self._skeleton.parameters.items() if self._match.args[place] is UNSET), None)
        if reason is None and missing is not None:
            # What belongs to a result that the graph does not have.
            why = next((self._unlike[user] for user in missing.users if user in self._unlike), None)
            why = why or "the graph has no call of what the pattern makes of it"
            reason = f"nothing here is {self._names[self._skeleton.parameters[missing]]!r}: {why}"
        return self._match, reason

    def _call(self, wanted: fx.Node, found: fx.Node, what: str = "") -> str | None:
        """Take one call of the graph for one of the pattern's, and return why that cannot be, or None."""
        if wanted in self._match.calls:
            return None if self._match.calls[wanted] is found else f"{what} comes from another call than the others"
        mine, theirs = self._reader.read(wanted), self._reader.read(found)
        if mine is None or theirs is None or mine.kind != theirs.kind:
            return f"{what} comes from {self._reader.label(found)}, wanted {_wanted(wanted, mine)}"
        if found in self._match.calls.values():
            return f"{what} comes from a call that is another part already"
        before = Match(dict(self._match.calls), list(self._match.args))
        self._match.calls[wanted] = found
        reason = self._arguments(mine, theirs)
        if reason is not None and mine.commutes and theirs.commutes:
            straight, self._match = self._match, before
            self._match.calls[wanted] = found
            if self._arguments(mine, _exchanged(theirs)) is None:
                return None
            self._match = straight
        return reason

    def _arguments(self, mine: Call, theirs: Call) -> str | None:
        """Take a call's arguments for the pattern's, and return why that cannot be, or None."""
        for name, wanted in mine.arguments.items():
            if name not in theirs.arguments:
                return f"{argument(name)} of {mine.label} is missing"
            reason = self._argument(f"{argument(name)} of {mine.label}", name, wanted, theirs.arguments[name])
            if reason is not None:
                return reason
        more = next((name for name in theirs.arguments if name not in mine.arguments), None)
        return None if more is None else f"{mine.label} has {more!r}, and the pattern's list is shorter"

    def _argument(self, what: str, name: str, wanted: Any, found: Any) -> str | None:
        """Take one argument for the pattern's, and return why that cannot be, or None."""
        if not is_tensor(wanted):
            return (
                f"{what} is a tensor, wanted {wanted}" if is_tensor(found) else self._plain(what, name, wanted, found)
            )
        place = self._skeleton.parameters.get(wanted)
        left_out = found is None and place is not None and self._names[place] in self._free
        if not is_tensor(found) and not left_out:
            return f"{what} is {found}, wanted a tensor"
        if place is not None:
            return self._bind(what, place, found)
        port, other = port_of(wanted), port_of(found)
        if other.which != port.which and self._kinds_agree(port, other):
            self._match.calls[port.node] = other.node  # it is found, so this reason goes before that of another form
            return f"{what} is result {other.which} of {self._reader.label(other.node)}, wanted {port.which}"
        return self._call(port.node, other.node, what)

    def _plain(self, what: str, name: str, wanted: Any, found: Any) -> str | None:
        """Bind a plain value where that is free; all others are compared once it is known what the pattern is there."""
        place = self._names.index(name) if name in self._free and name in self._names else None
        return None if place is None or not equal(wanted, self._example[place]) else self._bind(what, place, found)

    def _kinds_agree(self, mine: Port, theirs: Port) -> bool:
        """Tell whether two results come from calls of the same kind."""
        one, other = self._reader.read(mine.node), self._reader.read(theirs.node)
        return one is not None and other is not None and one.kind == other.kind

    def _bind(self, what: str, place: int, found: Any) -> str | None:
        """Bind a parameter, and return why that cannot be, or None."""
        bound = self._match.args[place]
        if bound is UNSET:
            self._match.args[place] = found
            return None
        if bound is found or (not is_tensor(bound) and not is_tensor(found) and equal(bound, found)):
            return None
        if is_tensor(bound) or is_tensor(found):
            return f"{what} is another tensor than {self._names[place]!r} is elsewhere"
        return f"{what} is {found}, and {bound} elsewhere: the pattern has one {self._names[place]!r}"

    def _others(self) -> str | None:
        """Find the calls that do not lead to the anchor, and return why there is none, or None.

        One that only makes a result may be missing: then nobody wants that result.
        """
        for wanted in self._skeleton.calls:
            if wanted in self._match.calls:
                continue
            candidates = self._candidates(wanted)
            reason = self._other(wanted, candidates)
            inner = any(
                user in self._skeleton.calls
                for holders in ports_of(wanted).values()
                for h in holders
                for user in h.users
            )
            if reason is not None and inner:
                return reason
        return None

    def _other(self, wanted: fx.Node, candidates: Sequence[fx.Node]) -> str | None:
        """Take one of the candidates for a call of the pattern, and return why none can be, or None."""
        mine = self._reader.read(wanted)
        name = _wanted(wanted, mine)
        there = ", ".join(dict.fromkeys(map(self._reader.label, candidates)))
        reason = f"{name}, which the pattern has, is missing" + (
            f": what it would read is read by {there}" if there else ""
        )
        for candidate in candidates:
            before = Match(dict(self._match.calls), list(self._match.args))
            found = self._call(wanted, candidate, name)
            if found is None:
                return None
            self._match = before
            theirs = self._reader.read(candidate)
            if mine is not None and theirs is not None and mine.kind == theirs.kind:
                reason = self._unlike[wanted] = self._turned(mine, theirs) or found
        return reason

    def _turned(self, mine: Call, theirs: Call) -> str | None:
        """Tell of a call that it would be the pattern's with its first two arguments exchanged, or return None."""
        if min(len(mine.arguments), len(theirs.arguments)) < PAIR:
            return None
        before, self._match = self._match, Match(dict(self._match.calls), list(self._match.args))
        found = self._arguments(mine, _exchanged(theirs))
        self._match = before
        return None if found is not None else f"the first two arguments of {mine.label} are the other way round"

    def _candidates(self, wanted: fx.Node) -> list[fx.Node]:
        """Return the graph's calls that read what one of the pattern's reads."""
        for value in wanted.all_input_nodes:
            place, port = self._skeleton.parameters.get(value), port_of(value)
            source: Any = None if place is None else self._match.args[place]
            if place is None and port.node in self._match.calls:
                holders = ports_of(self._match.calls[port.node]).get(port.which, [])
                return [user for holder in holders for user in holder.users]
            if is_tensor(source):
                return list(source.users)
        return []


def differences(drawn: Skeleton, skeleton: Skeleton, match: Match, reader: Reader) -> str | None:
    """Return in what the graph differs from the pattern drawn on what was found, or None.

    Args:
        drawn: the pattern, drawn on what is bound to its parameters.
        skeleton: the pattern, drawn on its example, by whose nodes the match goes.
        match: what was found.
        reader: reads nodes.
    """
    if len(drawn.calls) != len(skeleton.calls):
        return "on these arguments the pattern is another graph"
    for mine, key in zip(drawn.calls, skeleton.calls, strict=True):
        theirs = match.calls.get(key)
        if theirs is None:
            continue
        wanted, found = reader.read(mine), reader.read(theirs)
        if wanted is None or found is None or wanted.kind != found.kind:
            return "on these arguments the pattern is another graph"
        if wanted.arguments.keys() != found.arguments.keys():
            return "on these arguments the pattern is another graph"
        for name, value in wanted.arguments.items():
            there = found.arguments[name]
            if not is_tensor(value) and not equal(value, there, typed=wanted.typed):
                return f"{argument(name)} of {wanted.label} is {short(there)}, wanted {short(value)}"
        reason = _kinds(wanted, tensors_of(value_of(mine)), tensors_of(value_of(theirs)))
        if reason is not None:
            return reason
    return None


def _kinds(call: Call, wanted: Sequence[Any], found: Sequence[Any]) -> str | None:
    """Return in what results differ in dtype or shape, or None."""
    if len(wanted) != len(found):
        return f"{call.label} has {len(found)} results, wanted {len(wanted)}"
    for mine, theirs in zip(wanted, found, strict=True):
        if mine.dtype != theirs.dtype:
            verb = "makes" if call.kind in (CAST, VIEW) else "returns"
            return f"{call.label} {verb} {short(theirs.dtype)}, wanted {short(mine.dtype)}"
        shapes = tuple(theirs.shape), tuple(mine.shape)
        if len(shapes[0]) != len(shapes[1]) or not all(map(same, *shapes)):
            return f"{call.label} returns shape {shape(shapes[0])}, wanted {shape(shapes[1])}"
    return None


def _exchanged(call: Call) -> Call:
    """Return a call with its first two arguments exchanged."""
    (first, one), (second, other), *rest = call.arguments.items()
    return Call(call.kind, call.label, dict([(first, other), (second, one), *rest]), commutes=call.commutes)


def _wanted(node: fx.Node, call: Call | None) -> str:
    """Return what a pattern has at a node, in words.

    Args:
        node: of the pattern.
        call: what it calls.
    """
    if call is None or call.kind not in (CAST, VIEW):
        return "a call" if call is None else call.label
    (dtype,) = {tensor.dtype for tensor in tensors_of(value_of(node))}
    return f"a cast (to {short(dtype)} in the pattern's example)" if call.kind == CAST else "a view"
