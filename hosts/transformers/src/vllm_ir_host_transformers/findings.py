"""What was put on IR ops and what was left, as values that a person can read.

How a place is recognised is known in the room of its kind; what undoes a replacement is in `replace`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_ir_host_transformers import instance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class Replaced:
    """One place of a model that now runs on an IR op.

    Attributes:
        name: the module's path in the model.
        kind: "norm", "residual", "activation" or "rotary".
        op: the op that runs there.
        module: the module's class.
        note: what is worth knowing about this place; mostly empty.
    """

    name: str
    kind: str
    op: str
    module: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """One place of a model that looks like an op's and runs as it did before.

    Attributes:
        name: the module's path in the model.
        kind: "norm", "residual", "activation" or "rotary".
        module: the module's class.
        reason: why it was left.
    """

    name: str
    kind: str
    module: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """What `use_ir_ops` did to a model; a context manager that undoes it.

    Attributes:
        replaced: the places that run on IR ops.
        left: the places that were left, each with its reason.
        model: the model.
    """

    replaced: tuple[Replaced, ...]
    left: tuple[Left, ...]
    model: nn.Module = field(repr=False, compare=False)

    @property
    def ops(self) -> dict[str, int]:
        """How many places run on each op."""
        counts: dict[str, int] = {}
        for place in self.replaced:
            counts[place.op] = counts.get(place.op, 0) + 1
        return counts

    @property
    def norms(self) -> int:
        """How many norms run on an IR op, those that a residual add is fused into among them."""
        return sum(place.kind in {"norm", "residual"} for place in self.replaced)

    def restore(self) -> None:
        """Give every module of the model back the forward of its class."""
        instance.clear(self.model)

    def __enter__(self) -> Self:
        """Return this value."""
        return self

    def __exit__(self, *_: object) -> None:
        """Undo the replacement."""
        self.restore()

    def lines_done(self) -> list[str]:
        """Return one line per op and kind of place that runs on it."""
        rows = _grouped((place.op, place.module, place.name, place.note) for place in self.replaced)
        return [
            f"{count} x {op}: {module} at {names}{f' ({note})' if note else ''}"
            for op, module, names, note, count in rows
        ]

    def lines_left(self) -> list[str]:
        """Return one line per kind of place that was left and its reason."""
        rows = _grouped((place.kind, place.module, place.name, place.reason) for place in self.left)
        return [f"{count} x {kind} left: {module} at {names}: {why}" for kind, module, names, why, count in rows]

    def __str__(self) -> str:
        """Return what was done, then what was left, a line each."""
        return "\n".join([*self.lines_done(), *self.lines_left()]) or "nothing here looks like an op of vllm-ir"


def _grouped(rows: Iterable[tuple[str, str, str, str]]) -> list[tuple[str, str, str, str, int]]:
    """Return rows that differ only in the numbers in their path as one, with how many they were."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for what, module, name, why in rows:
        groups.setdefault((what, module, why), []).append(re.sub(r"\d+", "*", name) or "the model itself")
    return [
        (what, module, ", ".join(dict.fromkeys(names)), why, len(names))
        for (what, module, why), names in groups.items()
    ]
