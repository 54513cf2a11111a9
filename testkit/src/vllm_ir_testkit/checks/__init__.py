"""Every check, one module each: its name, what it demands in one sentence, and how it looks.

A check writes into `Notes`; which ops and providers it is given is left to `engine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAMES: Final = (
    "manifest",
    "verdict",
    "predicate",
    "refusal",
    "values",
    "inputs",
    "aliasing",
    "functional",
    "layout",
    "poison",
    "zero_tokens",
    "batch_invariance",
    "opcheck",
    "compile",
    "second_stream",
    "cuda_graph",
    "two_devices",
)
"""The checks in the order in which they run and are shown."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: as reports and known failures call it.
        sentence: what it demands.
        run: judges an op of a provider.
    """

    name: str
    sentence: str
    run: Callable[[Subject, Notes], None]


def find(name: str) -> Check:
    """Return a check by its name, one of `NAMES`."""
    module = import_module(f"{__name__}.{name}")
    return Check(module.NAME, module.SENTENCE, module.check)
