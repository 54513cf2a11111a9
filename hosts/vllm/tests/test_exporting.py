"""Counts of a worker go where Prometheus looks, once a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import prometheus
from vllm_ir.errors import PrometheusMissing
from vllm_ir_host_vllm import exporting

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Let each test be the first."""
    exporting.export.cache_clear()
    yield
    exporting.export.cache_clear()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give what was registered in place of the library's own registry."""
    found: list[str] = []
    monkeypatch.setattr(prometheus, "register_collector", lambda: found.append("collector"))
    return found


def test_a_second_model_in_a_process_registers_no_second_collector(
    registered: list[str], monkeypatch: Any, caplog: Any
) -> None:
    """A registry refuses it; and where no folder is shared, it is said who sees the counts."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    caplog.set_level("INFO", "vllm_ir")
    exporting.export()
    exporting.export()
    assert registered == ["collector"]
    assert "PROMETHEUS_MULTIPROC_DIR=FOLDER shows them in /metrics" in caplog.text


def test_with_a_shared_folder_there_is_nothing_to_say(registered: list[str], monkeypatch: Any, caplog: Any) -> None:
    """The server that is scraped finds the counts there."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "anywhere")
    caplog.set_level("INFO", "vllm_ir")
    exporting.export()
    assert registered == ["collector"]
    assert caplog.messages == []


def test_without_the_library_a_server_starts_and_is_warned(monkeypatch: Any, caplog: Any) -> None:
    """Counts are still in the report of the process."""

    def refuse() -> None:
        """Find no library."""
        raise PrometheusMissing(wanted="counts")

    monkeypatch.setattr(prometheus, "register_collector", refuse)
    exporting.export()
    assert "prometheus" in caplog.text
