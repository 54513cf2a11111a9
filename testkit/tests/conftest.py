"""What the kit's own tests share: a state of their own, right kernels to spoil, and the table of faults at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir_testkit import TestManager

if TYPE_CHECKING:
    from collections.abc import Iterator

CAUGHT = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Let torch use one thread: the tests are many and small, and the machine has others to serve."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def manager() -> Iterator[TestManager]:
    """Give a state of its own."""
    with TestManager() as found:
        yield found


@pytest.fixture
def caught(pytestconfig: pytest.Config) -> list[tuple[str, str, str]]:
    """Give the list of faults that were caught: fault, check, and what it said."""
    return pytestconfig.stash.setdefault(CAUGHT, [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show which check caught which fault."""
    rows = config.stash.get(CAUGHT, [])
    if not rows:
        return
    terminalreporter.section("seeded fault -> the check that caught it")
    for fault, check, said in sorted(rows, key=lambda row: row[1]):
        terminalreporter.write_line(f"{fault:<52} -> {check:<17} {said[:130]}")
