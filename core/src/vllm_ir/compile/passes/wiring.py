"""Whether a pattern that asks its arguments something is wired on those of a match as it is on its example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.compile.passes.reading import Port, is_tensor, port_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir.compile.passes.matching import Match
    from vllm_ir.compile.passes.reading import Reader
    from vllm_ir.compile.passes.skeleton import Skeleton


def rewired(drawn: Skeleton, skeleton: Skeleton, match: Match, reader: Reader) -> str | None:
    """Return that calls of one order read or return something else than by the example, or None.

    Args:
        drawn: the pattern, drawn on what is bound to its parameters.
        skeleton: the pattern, drawn on its example: as many calls of the same kinds.
        match: what was found.
        reader: reads nodes.
    """
    one, other = _Sources(drawn, match), _Sources(skeleton, match)
    same = list(map(one.of_port, drawn.outputs)) == list(map(other.of_port, skeleton.outputs))
    for mine, theirs in zip(drawn.calls, skeleton.calls, strict=True):
        first, second = reader.read(mine), reader.read(theirs)
        if first is not None and second is not None:
            same = same and one.of_all(first.arguments) == other.of_all(second.arguments)
    return None if same else "on these arguments the pattern is another graph"


class _Sources:
    """Where the tensors of a pattern come from, told by what both of its graphs have.

    Args:
        skeleton: one of the graphs.
        match: what is bound to the parameters: one node may be bound to two.
    """

    def __init__(self, skeleton: Skeleton, match: Match) -> None:
        self._parameters = skeleton.parameters
        self._calls = {node: place for place, node in enumerate(skeleton.calls)}
        self._args = match.args

    def of_port(self, port: Port) -> tuple[object, ...]:
        """Return the parameter's value, or the call's place and which of its results; constants are all alike."""
        if port.node in self._parameters:
            return ("given", self._args[self._parameters[port.node]])
        return (self._calls.get(port.node), port.which)

    def of_all(self, arguments: Mapping[str, Any]) -> dict[str, tuple[object, ...]]:
        """Return the same for every tensor among a call's arguments; a parameter that is left out is no tensor."""
        found = {name: self.of_port(port_of(value)) for name, value in arguments.items() if is_tensor(value)}
        return {name: source for name, source in found.items() if source != ("given", None)}
