"""All that a process was told and found, in one value that a test can put away and bring back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir import first_use
from vllm_ir.graphs import Records
from vllm_ir.landscape import Landscape
from vllm_ir.once import Once
from vllm_ir.preferences import Preferences
from vllm_ir.wrapping import Wrapping

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class State:
    """All that a process was told and found, apart from its ops.

    Attributes:
        preferences: what users asked for.
        loader: what discovers providers.
        landscape: what discovery found, for dispatch.
        discovery: all that discovery found.
        wrapping: whether tracers see torch ops.
        counting: the program asked for counts.
        graphs: what became of compiled graphs.
    """

    preferences: Preferences = field(default_factory=Preferences)
    loader: Callable[[], object] = first_use.run
    landscape: Landscape = field(default_factory=Landscape)
    discovery: Once[Any] = field(default_factory=Once)
    wrapping: Wrapping = field(default_factory=Wrapping)
    counting: bool = False
    graphs: Records = field(default_factory=Records)
