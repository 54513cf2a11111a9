"""Manifest: what the file promises without an import is what the code does.

The core holds ops and flags of the file against the hooks when it loads a distribution; dtypes only show in calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.dispatch import judge

from vllm_ir_testkit.cases import DTYPES, Case

if TYPE_CHECKING:
    from vllm_ir_testkit.notes import Notes
    from vllm_ir_testkit.subject import Subject

NAME: Final = "manifest"
SENTENCE: Final = "the manifest and the hooks agree, dtypes included"

ASKED: Final = (*DTYPES, "float64")
"""Dtypes that a predicate is asked about."""


def check(subject: Subject, notes: Notes) -> None:
    """Hold the dtypes and flags of the manifest against the implementation."""
    record = subject.record
    if record is None or record.manifest is None:
        notes.skip("a program registered it by itself, so there is no manifest")
        return
    promised = record.manifest.ops.get(subject.op.name)
    if promised is None:
        notes.tried()
        notes.fault(subject.op.name, "the manifest does not list the op")
        return
    for key, said, done in (
        ("inplace", promised.inplace, subject.impl.inplace),
        ("batch-invariant", promised.batch_invariant, subject.impl.batch_invariant),
    ):
        notes.tried()
        if said != done:
            notes.fault(
                subject.op.name, f"the manifest says {key} = {str(said).lower()}, the hooks {str(done).lower()}"
            )
    dtypes = promised.dtypes if promised.dtypes is not None else record.dtypes
    for dtype in ASKED:
        case = Case(dtype=dtype)
        args = subject.take(case)
        if args is None or dtypes is None:
            continue
        notes.tried()
        refusal = judge(subject.impl, args)
        if dtype in dtypes and refusal is not None:
            notes.fault(case, f"the manifest lists {dtype}, and supports_args refuses the plain call: {refusal}")
        if dtype not in dtypes and refusal is None:
            notes.fault(case, f"the manifest leaves {dtype} out, and supports_args accepts it")
    if dtypes is None and subject.impl.predicate is not None and not subject.plain():
        notes.fault(subject.op.name, "the manifest limits no dtype, and supports_args refuses the plain call of each")
