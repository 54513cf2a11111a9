"""A clean environment for every test, and a process state of its own for those that declare or configure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vllm_ir.runtime import Runtime


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away every variable that vllm-ir reads, and stand in a folder without settings."""
    for name in list(os.environ):
        if name.startswith("VLLM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def state() -> Iterator[Runtime]:
    """Give the test a process state in which only core's ops with their natives are known."""
    import vllm_ir.ops  # noqa: F401 - registers core's ops before the state is taken apart
    from vllm_ir.isolation import isolated

    with isolated() as fresh:
        yield fresh
