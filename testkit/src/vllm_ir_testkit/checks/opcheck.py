"""Opcheck: torch's own tests of an operator, on `default` and on every custom op that the implementation calls.

Torch refuses operators that return their inputs, so `maybe_inplace` has a check of its own, `aliasing`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "opcheck"
SENTENCE: Final = "torch.library.opcheck passes on default and on the provider's own custom ops"

OURS: Final = frozenset(
    {"aten", "prims", "prim", "vllm_ir", "vllm_ir_core", "profiler", "debugprims", "_c10d_functional"}
)
"""Namespaces whose operators are torch's or the core's."""


class CustomOps(TorchDispatchMode):
    """Keeps the first call of every custom op that runs while it is open.

    Attributes:
        calls: arguments and keyword arguments, copied, by operator.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Keep a call of a custom op and let it run."""
        del types
        given = dict(kwargs or {})
        if func.namespace not in OURS and func not in self.calls:
            self.calls[func] = (_copied(args), {name: _copied(value) for name, value in given.items()})
        return func(*args, **given)


def check(subject: Subject, notes: Notes) -> None:
    """Run opcheck on a plain and a strided call of each dtype, and once on each custom op that these call."""
    wanted = [case for case in subject.legal() if case.hidden is None and case.lead is None]
    strided = [case for case in wanted if case.layout == "packed" and not case.variant.name]
    mode = CustomOps()
    for case, args in subject.accepted([*subject.plain(), *strided]):
        notes.tried()
        for function in filter(None, (subject.impl.impl_fn, subject.impl.functional)):
            with contextlib.suppress(Exception), mode:  # the refusal check reports what raises
                function(*subject.build(case))
        if case.plain or case.dtype == "float32":
            _opcheck(notes, f"{case}", subject.op.torch_op, args, {})
    for operator, (args, kwargs) in mode.calls.items():
        _opcheck(notes, str(operator), operator, args, kwargs)
    notes.figures["custom_ops"] = sorted(str(operator) for operator in mode.calls)


def _opcheck(notes: Notes, case: str, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run torch's tests on one call and write down each that fails."""
    try:
        results: dict[str, Any] = torch.library.opcheck(operator, args, kwargs, raise_exception=False)
    except Exception as error:  # noqa: BLE001 - opcheck itself raises on what it cannot read
        notes.fault(case, f"opcheck of {operator} raised {in_words(error)}")
        return
    for name, result in results.items():
        if isinstance(result, BaseException):
            notes.fault(case, f"opcheck of {operator}: {name}: {in_words(result)}")


def _copied(value: Any) -> Any:
    """Return a value with its tensors copied; a custom op may write to what it was given."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value
