"""Running checks: one op and one check at a time, each under a priority that puts the provider first.

What a check demands is its own; what is known to fail is `known`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from vllm_ir_testkit import checks, known
from vllm_ir_testkit.errors import NoSuchCheck
from vllm_ir_testkit.notes import Notes, in_words
from vllm_ir_testkit.outcome import FAILED, KNOWN, MOST, PASSED, SKIPPED, Finding, Outcome, Report
from vllm_ir_testkit.plan import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir_testkit.known import KnownFailure
    from vllm_ir_testkit.plan import Plan
    from vllm_ir_testkit.subject import Subject


def conformance(
    provider: str,
    ops: Sequence[str] = (),
    names: Sequence[str] = (),
    known_failures: Sequence[KnownFailure] = (),
    tell: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Judge every op of a provider with every check.

    Args:
        provider: its name.
        ops: the ops to judge; all when empty.
        names: the checks to run; all when empty.
        known_failures: what is known to fail, beside what the provider's package carries.
        tell: called before each step with how many are done, how many there are, and what comes.

    Raises:
        NoSuchProvider, NoSuchOp, NoSuchCheck, BadKnownFailures: a name or a file does not fit.
    """
    return run(make_plan(provider, ops), names, known_failures, tell)


def run(
    plan: Plan,
    names: Sequence[str] = (),
    known_failures: Sequence[KnownFailure] = (),
    tell: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Run checks over a plan; arguments as `conformance`.

    Raises:
        NoSuchCheck: there is no such check.
    """
    chosen = select(names)
    started = time.perf_counter()
    steps = [(subject, name) for subject in plan.subjects for name in chosen]
    outcomes = list(failure_outcomes(plan))
    for done, (subject, name) in enumerate(steps):
        if tell is not None:
            tell(done, len(steps), f"{subject.op.name}: {name}")
        outcomes.append(judge(subject, name, plan, known_failures))
    return report(plan, outcomes, time.perf_counter() - started)


def report(plan: Plan, outcomes: Sequence[Outcome], seconds: float | None = None) -> Report:
    """Return the report that outcomes of a plan make.

    Args:
        plan: what was to be judged.
        outcomes: what was found.
        seconds: how long it took; the sum of the outcomes' own when None.
    """
    return Report(
        provider=plan.provider,
        distribution=plan.record.distribution if plan.record else None,
        version=plan.record.version if plan.record else None,
        platform=plan.machine,
        torch=str(torch.__version__),
        outcomes=tuple(outcomes),
        refused=plan.refused,
        seconds=sum(each.seconds for each in outcomes) if seconds is None else seconds,
    )


def select(names: Sequence[str]) -> tuple[str, ...]:
    """Return the named checks in their own order, all when none is named.

    Raises:
        NoSuchCheck: there is no such check.
    """
    for name in names:
        if name not in checks.NAMES:
            raise NoSuchCheck(check=name, known=checks.NAMES)
    return tuple(name for name in checks.NAMES if not names or name in names)


def failure_outcomes(plan: Plan) -> list[Outcome]:
    """Return a failed outcome for a distribution that did not load because of a fault of its own."""
    if plan.failure is None or not plan.failure.fault:
        return []
    return [
        Outcome(op="*", check="manifest", state=FAILED, findings=(Finding("loading", plan.failure.reason),), cases=1)
    ]


def judge(subject: Subject, name: str, plan: Plan, known_failures: Sequence[KnownFailure] = ()) -> Outcome:
    """Run one check on one op and return what it found."""
    notes = Notes()
    started = time.perf_counter()
    try:
        with torch.no_grad(), subject.op.set_priority([subject.provider]):
            checks.find(name).run(subject, notes)
    except Exception as error:  # noqa: BLE001 - a check that cannot go on must not pass, nor stop the others
        notes.fault("the check itself", f"stopped: {in_words(error)}")
    seconds = time.perf_counter() - started
    op = subject.op.name
    if not notes.findings and (notes.reason is not None or not notes.cases):
        reason = notes.reason or "the provider refuses every case"
        return Outcome(op, name, SKIPPED, reason=reason, figures=notes.figures, seconds=seconds)
    entries = (*plan.known, *known_failures)
    findings = known.judge(notes.findings, entries, op, name, plan.platform)
    state = PASSED if not findings else KNOWN if all(each.known for each in findings) else FAILED
    findings = tuple(sorted(findings, key=lambda each: each.known is not None))
    return Outcome(
        op=op,
        check=name,
        state=state,
        findings=findings[:MOST],
        more=max(0, len(findings) - MOST),
        cases=notes.cases,
        figures=notes.figures,
        seconds=seconds,
    )
