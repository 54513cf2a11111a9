"""Which places without a match are near ones: those that share more with a pattern than its last op.

Every norm of a model would be a near miss of a fusion of sums and norms otherwise, and every quantisation one of gates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.compile.passes.reading import CAST, VIEW, is_tensor, port_of

if TYPE_CHECKING:
    from torch import fx

    from vllm_ir.compile.passes.reading import Reader


def is_near(anchor: fx.Node, node: fx.Node, reader: Reader) -> bool:
    """Tell whether a call is fed by one of the operations that a pattern feeds its last op with.

    Casts and views in between are looked through on both sides. A pattern whose last op is fed by none is always near.

    Args:
        anchor: the pattern's last call of an op.
        node: a call of the same op.
        reader: reads nodes.
    """
    wanted = _feeders(anchor, reader)
    return not wanted or bool(wanted & _feeders(node, reader))


def _feeders(node: fx.Node, reader: Reader) -> set[object]:
    """Return what computes the tensors that a call reads, as `Call.kind` has it."""
    call = reader.read(node)
    values: list[Any] = [] if call is None else [value for value in call.arguments.values() if is_tensor(value)]
    found: set[object] = set()
    for value in values:
        source = port_of(value).node
        made = reader.read(source)
        while made is not None and made.kind in (CAST, VIEW):
            source = port_of(made.arguments["self"]).node
            made = reader.read(source)
        if made is not None:
            found.add(made.kind)
    return found
