"""What pytest gets of the kit: options, a fixture, and a table at the end of a run that judged a provider.

Every pytest run on a machine loads this module, so it imports nothing but pytest until it is asked for something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from vllm_ir_testkit.suite.options import KNOWN, OPS, PROVIDER, REPORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir_testkit.manager import TestManager


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `pytest --pyargs vllm_ir_testkit`."""
    group = parser.getgroup("vllm-ir", "judging a provider of vllm-ir")
    group.addoption(PROVIDER, metavar="NAME", help="the provider that `pytest --pyargs vllm_ir_testkit` judges")
    group.addoption(OPS, action="append", default=[], metavar="OP", help="only this op; may be repeated")
    group.addoption(KNOWN, action="append", default=[], metavar="FILE", help="known failures beside its package's")
    group.addoption(REPORT, metavar="FILE", help="write what was found as JSON")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the table of a provider that was judged, and write the report that was asked for."""
    if config.getoption(PROVIDER) is None:
        return
    from vllm_ir_testkit.suite.session import SESSION

    session = config.stash.get(SESSION, None)
    if session is not None and session.outcomes:
        terminalreporter.section(f"vllm-ir conformance of {session.plan.provider}")
        terminalreporter.write(session.finish(config.getoption(REPORT)))


@pytest.fixture
def vllm_ir_manager() -> Iterator[TestManager]:
    """Give a state of its own to a test: native and what the test adds; what is installed is not looked at."""
    from vllm_ir_testkit.manager import TestManager

    with TestManager() as manager:
        yield manager
