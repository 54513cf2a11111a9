"""Compile: the op survives `torch.compile` with a full graph, static and dynamic, and so does the implementation.

Three ways in, as a compiler takes them: the opaque op; the implementation that a tracer is led into; and a trace of it
on fake tensors, which is what lowering makes. Eager backends for every dtype, Inductor once.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
import vllm_ir
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir.tolerances import comparable, default_tolerances

from vllm_ir_testkit.batch import results
from vllm_ir_testkit.bounds import is_exact
from vllm_ir_testkit.cases import Case
from vllm_ir_testkit.notes import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.tolerances import Tolerance

    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "compile"
SENTENCE: Final = "survives torch.compile with a full graph, static and dynamic, and being traced"

MORE_TOKENS: Final = 9
"""Tokens of the second call of a dynamic graph."""


def check(subject: Subject, notes: Notes) -> None:
    """Compile a plain call of each dtype in every way, and once with Inductor."""
    static = partial(_compiled, backend="aot_eager", dynamic=False)
    dynamic = partial(_compiled, backend="aot_eager", dynamic=True)
    inductor = partial(_compiled, backend="inductor", dynamic=False)
    cases = subject.plain()
    for case in cases:
        _attempt(subject, notes, case, "torch.compile", static)
        for name, form in subject.forms.items():
            _attempt(subject, notes, case, f"tracing {name} on fake tensors", partial(_traced, form))
    for case in cases[:1]:
        _attempt(subject, notes, case, "dynamic torch.compile", dynamic)
        _attempt(subject, notes, case, "torch.compile into the kernel", _unwrapped)
        _attempt(subject, notes, case, "Inductor", inductor)


def _attempt(
    subject: Subject, notes: Notes, case: Case, way: str, attempt: Callable[[Subject, Case], str | None]
) -> None:
    """Try one way and write down what it raises or what is wrong with its result."""
    notes.tried()
    torch.compiler.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            what = attempt(subject, case)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is the fault that is looked for
        what = f"raised {in_words(error)}"
    if what is not None:
        notes.fault(case, f"{way}: {what}")


def _compiled(subject: Subject, case: Case, *, backend: str, dynamic: bool) -> str | None:
    """Compile the op as a program calls it; return what is wrong with its result."""
    compiled = torch.compile(_call(subject), fullgraph=True, dynamic=dynamic, backend=backend)
    others = [Case(tokens=MORE_TOKENS, dtype=case.dtype)] if dynamic else []
    for each in (case, *others):
        what = _difference(subject, each, results(compiled(*subject.build(each))))
        if what is not None:
            return what
    return None


def _unwrapped(subject: Subject, case: Case) -> str | None:
    """Let Dynamo trace into the implementation; return what is wrong with its result."""
    with vllm_ir.enable_torch_wrap(enable=False):
        return _compiled(subject, case, backend="aot_eager", dynamic=False)


def _traced(form: Callable[..., Any], subject: Subject, case: Case) -> str | None:
    """Trace a form of the implementation on fake tensors, as lowering does; return what is wrong with the result."""
    args = subject.build(case)
    positions = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]

    def implementation(*tensors: Any) -> Any:
        """Run it on tensors alone; everything else is a constant of the graph."""
        whole = list(args)
        for i, x in zip(positions, tensors, strict=True):
            whole[i] = x
        return form(*whole)

    graph = make_fx(implementation, tracing_mode="symbolic")(*(args[i] for i in positions))
    fresh = subject.build(case)
    return _difference(subject, case, results(graph(*(fresh[i] for i in positions))))


def _call(subject: Subject) -> Callable[..., Any]:
    """Return a function that calls the op, for Dynamo to trace."""
    op = subject.op

    def call(*args: Any) -> Any:
        """Call the op."""
        return op(*args)

    return call


def _difference(subject: Subject, case: Case, got: Sequence[Any]) -> str | None:
    """Return in words how a compiled result is beyond the op's tolerance from native's, or None.

    A compiler may keep more precision between two operations than eager has, so bits are not asked for here.
    """
    wanted = subject.native(subject.build(case))
    if [x.dtype for x in got] != [x.dtype for x in wanted]:
        return f"dtypes {[x.dtype for x in got]}, native has {[x.dtype for x in wanted]}"
    try:
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(comparable(a), comparable(b), equal_nan=True, **_bounds(subject, b.dtype))
    except (AssertionError, ValueError) as error:
        return in_words(error)
    return None


def _bounds(subject: Subject, dtype: torch.dtype) -> Tolerance:
    """Return the op's tolerance; for an exact op the dtype's own relative one, since a compiler divides its own way."""
    if not dtype.is_floating_point:
        return {"atol": 0, "rtol": 0}
    found = subject.op.get_tolerance(dtype)
    return {"atol": 0, "rtol": default_tolerances()[dtype]["rtol"]} if is_exact(subject.op, dtype) else found
