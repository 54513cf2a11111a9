"""One test per op and check of the provider that `--vllm-ir-provider` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vllm_ir_testkit import engine, rendering
from vllm_ir_testkit.outcome import FAILED, KNOWN, SKIPPED
from vllm_ir_testkit.suite.session import Session

if TYPE_CHECKING:
    from vllm_ir_testkit.subject import Subject


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per op and check."""
    if "subject" not in metafunc.fixturenames:
        return
    session = Session.of(metafunc.config)
    items = session.items() if session is not None else []
    metafunc.parametrize(("subject", "check"), items, ids=[f"{subject.op.name}-{check}" for subject, check in items])


def test_it_can_run_here(pytestconfig: pytest.Config) -> None:
    """A provider is named, its distribution loads, and something of it runs on this machine."""
    session = Session.of(pytestconfig)
    if session is None:
        pytest.skip("name the provider to judge: --vllm-ir-provider=NAME")
    failed = engine.failure_outcomes(session.plan)
    if failed:
        session.outcomes += failed
        pytest.fail(failed[0].findings[0].what, pytrace=False)
    if not session.plan.subjects:
        reasons = "; ".join(f"{op}: {reason}" for op, reason in session.plan.refused.items())
        pytest.skip(f"nothing to check: {reasons or 'it has no op here'}")


def test_conformance(subject: Subject, check: str, pytestconfig: pytest.Config) -> None:
    """One op under one check."""
    session = Session.of(pytestconfig)
    if session is None:
        pytest.skip("name the provider to judge: --vllm-ir-provider=NAME")
    outcome = session.judge(subject, check)
    text = "\n".join(rendering.findings(outcome, most=10))
    if outcome.state == FAILED:
        pytest.fail(text, pytrace=False)
    if outcome.state == SKIPPED:
        pytest.skip(outcome.reason or "")
    if outcome.state == KNOWN:
        pytest.xfail(text)
