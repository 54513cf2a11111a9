"""A sweep of patterns over a graph: each place is replaced, or left alone for a reason that is counted."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.compile.functionalization import NOTE, donated_inputs
from vllm_ir.compile.graph import arguments_of, fake_arguments, source_of
from vllm_ir.compile.passes import conditions
from vllm_ir.compile.passes.matching import Matcher, differences
from vllm_ir.compile.passes.nearness import is_near
from vllm_ir.compile.passes.reading import Reader, ports_of
from vllm_ir.compile.passes.skeleton import draw, joined
from vllm_ir.compile.passes.surroundings import Outcome
from vllm_ir.compile.passes.wiring import rewired
from vllm_ir.compile.tracing import describe, splice
from vllm_ir.graphs import NearMiss
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import fx

    from vllm_ir.compile.passes.fusion import Form, Fusion
    from vllm_ir.compile.passes.matching import Match
    from vllm_ir.compile.passes.skeleton import Skeleton
    from vllm_ir.compile.passes.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class _Ready:
    """A match that may be replaced.

    Attributes:
        form: of the pattern.
        match: what was found.
        replacement: drawn on what was found.
        place: before which node it goes.
        first: whether it was drawn for this match.
    """

    form: Form
    match: Match
    replacement: Skeleton
    place: fx.Node
    first: bool


def fuse(name: str, graph: fx.Graph, fusions: Sequence[Fusion], around: Surroundings) -> Outcome:
    """Replace patterns wherever they stand in a graph.

    Args:
        name: of the pass, for the log.
        graph: functional, with fake results in each node's metadata.
        fusions: where several fit, the first is taken.
        around: what holds for the graph.

    Raises:
        BadFusion: a pattern cannot be one.
    """
    reader = Reader(around.ops())
    nodes = [node for node in graph.nodes if reader.op(node) is not None]
    if not nodes:
        return Outcome(0)
    sweep = _Sweep(graph, around, reader)
    forms = [each.form(around.table, reader) for each in fusions]
    changes, misses = 0, _Misses(name)
    for node in nodes:
        best: tuple[tuple[int, ...], str] | None = None
        if node.graph is not graph or node in sweep.gone:
            continue
        for form in forms:
            if form.anchor.target is not node.target:
                continue
            ready, reason, depth = sweep.judge(form, node)
            if ready is not None:
                sweep.replace(ready)
                changes, best = changes + 1, None
                break
            if not is_near(form.anchor, node, reader):
                continue
            if best is None or depth > best[0]:
                best = depth, reason
        if best is not None:
            misses.add(reader.label(node), best[1], node)
    return Outcome(changes, misses.all())


class _Misses:
    """Near misses, counted by op and reason.

    Args:
        name: of the pass.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[tuple[str, str], NearMiss] = {}

    def add(self, op: str, reason: str, node: fx.Node) -> None:
        """Count one, and log it with its node and the user's line."""
        where = source_of(node)
        known = self._found.get((op, reason))
        count = 1 if known is None else known.count + 1
        self._found[op, reason] = NearMiss(
            op, reason, count, node.name if known is None else known.node, where if known is None else known.where
        )
        if logger.isEnabledFor(logging.DEBUG):
            at = f" ({where})" if where else ""
            logger.debug("pass %s: %s in node %r%s is left alone: %s", self._name, op, node.name, at, reason)

    def all(self) -> tuple[NearMiss, ...]:
        """Return them in the order in which each was first seen."""
        return tuple(self._found.values())


class _Sweep:
    """One graph, while patterns are replaced in it.

    Args:
        graph: the graph.
        around: what holds for it.
        reader: reads its nodes.

    Attributes:
        gone: nodes that were replaced.
    """

    def __init__(self, graph: fx.Graph, around: Surroundings, reader: Reader) -> None:
        self._graph = graph
        self._around = around
        self._reader = reader
        self._drawn: dict[object, Skeleton | str] = {}
        self.gone: set[fx.Node] = set()

    def judge(self, form: Form, node: fx.Node) -> tuple[_Ready | None, str, tuple[int, ...]]:
        """Return a match that ends in a call, or why there is none, how far that came and how much was found."""
        matcher = Matcher(form.skeleton, form.names, form.example, form.fusion.free, self._reader, form.anchor)
        match, reason = matcher.match(node)
        if reason is not None:
            return None, reason, (0, *match.size())
        found = self._conditions(form, match)
        # Of two forms that are both found, the one that came further tells more.
        return (found, "", ()) if isinstance(found, _Ready) else (None, found[0], (found[1], *match.size()))

    def _conditions(self, form: Form, match: Match) -> _Ready | tuple[str, int]:
        """Return what may be replaced, or why it may not and how many steps were taken until that was seen."""
        unknown = match.settle(form.names)
        if unknown is not None:
            return f"{unknown!r} is left open in this graph, and nothing in it holds the number", 1
        values = fake_arguments(match.args)
        reason = (
            conditions.tensors(form.names, form.example, values, form.fusion.strided)
            or conditions.users(form.skeleton, match, self._reader)
            or self._differences(form, match, values)
            or conditions.asked(form.fusion.name, form.fusion.when, values)
            or conditions.written(self._graph, match)
        )
        place = conditions.place(form.skeleton, match)
        if reason is not None or place is None:
            return reason or "a result is read before all that the replacement reads is there", 1
        replacement, first = self._draw(form, "replacement", values)
        if isinstance(replacement, str):
            return replacement, 2
        reason = conditions.kinds(form.skeleton, replacement, match) or self._overruled(form, replacement)
        shared = joined(replacement, form.skeleton)
        if reason is None and shared is not None:
            reason = f"on these arguments the replacement {shared}"
        if reason is None and not self._around.is_inference:
            reason = "training: the graph is differentiated, and keeps the values in between"
        return _Ready(form, match, replacement, place, first) if reason is None else (reason, 2)

    def _differences(self, form: Form, match: Match, values: Sequence[Any]) -> str | None:
        """Return in what the graph differs from what the pattern is on what was found, or None."""
        pattern, _ = self._draw(form, "pattern", values)
        if isinstance(pattern, str):
            return pattern
        parts = pattern, form.skeleton, match, self._reader
        return differences(*parts) or rewired(*parts)

    def _overruled(self, form: Form, replacement: Skeleton) -> str | None:
        """Return which provider that a user named would be passed over, or None."""
        if self._around.plan is None:
            return None
        parts = [op for node in form.skeleton.calls if (op := self._reader.op(node)) is not None]
        return conditions.overruled(self._around.plan, parts, conditions.calls_of_ops(replacement, self._reader))

    def _draw(self, form: Form, which: str, values: Sequence[Any]) -> tuple[Skeleton | str, bool]:
        """Return one of a fusion's functions as a graph on what was found, or what it raised, and whether it is new."""
        key = (id(form), which, *map(describe, values))
        known = self._drawn.get(key)
        if known is not None:
            return known, False
        found: Skeleton | str
        try:
            found = draw(getattr(form.fusion, which), values, self._around.table, self._reader)
        except Exception as error:  # noqa: BLE001 - what an op says to these arguments is the reason
            found = conditions.said(error)
        if isinstance(found, str) or not found.traced.once:
            self._drawn[key] = found
        return found, True

    def replace(self, ready: _Ready) -> None:
        """Put a replacement in the place of a match."""
        match, skeleton = ready.match, ready.form.skeleton
        donated = self._donated(match)
        traced, args = ready.replacement.traced, list(match.args)
        held = conditions.results(skeleton, match)
        added, made = splice(self._graph, ready.place, traced, args, first=ready.first)
        for number, holders in held:
            for holder in holders:
                holder.replace_all_uses_with(made[number])
        self._reader.forget()
        self._note(added, donated)
        for node in sorted(match.calls.values(), reverse=True):
            for holders in ports_of(node).values():
                for holder in holders:
                    self._drop(holder)
            self._drop(node)
        for node in reversed(added):
            self._drop(node)

    def _drop(self, node: fx.Node) -> None:
        """Take a node that nobody reads out of the graph."""
        if node not in self.gone and not node.users:
            self._graph.erase_node(node)
            self.gone.add(node)

    def _donated(self, match: Match) -> set[fx.Node]:
        """Return what the caller of the graph donated to the calls of a match."""
        found: set[fx.Node] = set()
        for node in match.calls.values():
            op = self._reader.op(node)
            if op is not None and op.allow_inplace:
                args = arguments_of(node, op)
                found |= {args[index] for index in donated_inputs(node, op)}
        return found

    def _note(self, added: Sequence[fx.Node], donated: set[fx.Node]) -> None:
        """Let the ops of a replacement have what was donated to those that they stand for."""
        for node in added if donated else ():
            op = self._reader.op(node)
            if op is None or not op.allow_inplace:
                continue
            args = arguments_of(node, op)
            inputs = tuple(index for index in op.activation_indices if args[index] in donated)
            if inputs:
                node.meta["custom"] = {**(node.meta.get("custom") or {}), NOTE: (op.name, inputs)}
