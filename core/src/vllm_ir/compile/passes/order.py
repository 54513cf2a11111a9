"""In which order passes run: as they were given, moved only as far as what each declares about others asks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final

from vllm_ir.compile.passes.fusion import Fusion, FusionGroup
from vllm_ir.compile.passes.fusions import NAMES
from vllm_ir.errors import IrWarning, PassesInCircle, PassesOfOneName
from vllm_ir.errors.base import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_ir.graphs import BasePass

_OTHERS: Final = ("sequence_parallelism", "async_tensor_parallelism")
"""Names of the core's passes that `fusions` does not switch on."""


def check_names(passes: Sequence[BasePass], built_in: Iterable[str]) -> None:
    """See to it that a name tells a fusion, and what one declares about others means one.

    Args:
        passes: the user's. Passes of a class of theirs may share a name; fusions may not.
        built_in: names of the fusions that are switched on.

    Raises:
        PassesOfOneName: a fusion has the name of another pass.
    """
    seen = {name: (f"the built-in {name} that fusions=[...] switches on", True) for name in built_in}
    for each in passes:
        fusion = isinstance(each, (Fusion, FusionGroup))
        what = f"a {type(each).__name__} in passes=[...]"
        known = seen.setdefault(each.name, (what, fusion))
        if known[0] is not what and (fusion or known[1]):
            raise PassesOfOneName(name=each.name, first=known[0], second=what)
    names = list(dict.fromkeys((*(each.name for each in passes), *NAMES, *_OTHERS)))
    declared = [
        (each, part, name) for each in passes for part in ("before", "after") for name in getattr(each, part, ())
    ]
    for each, part, name in declared:
        if name not in names:
            text = (
                f"Graph pass {each.name!r}: {part} names {name!r}, which no pass of this compilation and none of the"
                f" core has, so it asks for nothing; there are {listed(names)}.{did_you_mean(name, names)}"
            )
            warnings.warn(text, IrWarning, stacklevel=2)


def ordered(passes: Iterable[BasePass]) -> tuple[BasePass, ...]:
    """Return passes in an order that keeps to their `before` and `after`; names that are not there ask for nothing.

    Args:
        passes: in the order that holds where nothing else is declared.

    Raises:
        PassesInCircle: no order does.
    """
    waiting = list(passes)
    found: list[BasePass] = []
    while waiting:
        ready = next((each for each in waiting if not _earlier(each, waiting)), None)
        if ready is None:
            raise PassesInCircle(names=_circle(waiting))
        waiting.remove(ready)
        found.append(ready)
    return tuple(found)


def _earlier(each: BasePass, others: Iterable[BasePass]) -> list[BasePass]:
    """Return those of others that have to run before a pass."""
    after = getattr(each, "after", ())
    return [
        other
        for other in others
        if other is not each and (other.name in after or each.name in getattr(other, "before", ()))
    ]


def _circle(waiting: list[BasePass]) -> tuple[str, ...]:
    """Return the names of passes each of which has to run before the one behind it, back to the first."""
    way = [waiting[0]]
    while True:
        before = _earlier(way[-1], waiting)[0]
        if before in way:
            return tuple(each.name for each in reversed([*way[way.index(before) :], before]))
        way.append(before)
