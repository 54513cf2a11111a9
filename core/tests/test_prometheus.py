"""Counts for Prometheus: of one process, and of workers that somebody else is scraped for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="needs torch, which this interpreter has not")
client = pytest.importorskip("prometheus_client", reason="needs prometheus_client, which is not installed here")

import torch  # noqa: E402 - after the check for it
from prometheus_client import multiprocess, values  # noqa: E402 - after the check for it
from vllm_ir import Unsupported, prometheus, register_op, runtime  # noqa: E402
from vllm_ir.errors import MalformedVariable, PrometheusMissing  # noqa: E402
from vllm_ir.graphs import GraphRecord  # noqa: E402
from vllm_ir.isolation import isolated  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir.op import IrOp

LABELS = ("op", "provider", "reason")

WORKER = """
import logging, multiprocessing, os, sys
import torch
from vllm_ir import Unsupported, prometheus, register_op

@register_op
def counted(x: torch.Tensor) -> torch.Tensor:
    return x

@counted.register_impl("picky", supports_args=lambda x: x.dim() == 1 or Unsupported("needs one dimension"))
def picky(x: torch.Tensor) -> torch.Tensor:
    return x

def call(times, end=False):
    for _ in range(times):
        counted(torch.ones(2, 2))
    if end:
        prometheus.publish()
        os._exit(0)

if __name__ == "__main__":
    counted.set_default(["picky"])
    prometheus.register_collector(interval=3600)
    prometheus.register_collector(interval=3600)
    call(int(sys.argv[1]))
    if sys.argv[2:]:
        forked = multiprocessing.get_context("fork").Process(target=call, args=(5,))
        forked.start()
        forked.join()
        if not (child := os.fork()):
            call(7, end=True)
        os.waitpid(child, 0)
        call(1)
"""


def make_op() -> IrOp:
    """Return an op with a provider that takes rows of four."""

    @register_op(name="scraped")
    def scraped(x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x

    @scraped.register_impl("fast", supports_args=lambda x: x.shape[-1] == 4 or Unsupported(f"got {x.shape[-1]}"))
    def fast(x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x

    scraped.set_default(["fast"])
    return scraped


def samples(registry: Any) -> dict[tuple[str, ...], float]:
    """Return the values that a scrape would give, by name and labels."""
    return {
        (
            sample.name,
            *(sample.labels[key] for key in ("op", "provider", "reason") if key in sample.labels),
        ): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


def test_one_process_is_scraped_by_what_the_report_shows() -> None:
    """Calls, refusals with their reasons and compiled graphs; and again, when there is more."""
    registry = client.CollectorRegistry()
    with isolated({"VLLM_IR_COUNTERS": "1"}):
        op = make_op()
        prometheus.register_collector(registry)
        assert samples(registry) == {}
        for size in (4, 4, 5):
            op(torch.ones(size))
        runtime.current().graphs.add(GraphRecord("0/0", {"scraped": {"scraped": "native", "scraped_1": "native"}}))
        assert samples(registry) == {
            ("vllm_ir_calls_total", "scraped", "fast"): 2,
            ("vllm_ir_calls_total", "scraped", "native"): 1,
            ("vllm_ir_refusals_total", "scraped", "fast", "got 5"): 1,
            ("vllm_ir_graphs_total", "scraped", "native"): 1,
        }
        op(torch.ones(4))
        text = client.generate_latest(registry).decode()
        assert 'vllm_ir_calls_total{op="scraped",provider="fast"} 3.0' in text
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            prometheus.register_collector(registry)


def test_many_reasons_become_one() -> None:
    """A sentence with a size in it must not make a series a size."""
    with isolated({"VLLM_IR_COUNTERS": "1"}):
        op = make_op()
        for size in range(5, 5 + prometheus.REASONS + 20):
            op(torch.ones(size))
        counted = prometheus.count()[prometheus.REFUSALS]
    assert len(counted) == prometheus.REASONS + 1
    assert counted["scraped", "fast", prometheus.OTHERS] == 20
    assert sum(counted.values()) == prometheus.REASONS + 20


def test_workers_are_added_up_by_whoever_is_scraped(tmp_path: Path) -> None:
    """Two workers, one of which forks in both ways: every call is in the sum once, and no process is waited for."""
    (tmp_path / "worker.py").write_text(WORKER, encoding="utf-8")
    shared = tmp_path / "shared"
    shared.mkdir()
    variables = {
        **os.environ,
        "PROMETHEUS_MULTIPROC_DIR": str(shared),
        "VLLM_IR_COUNTERS": "1",
        "OMP_NUM_THREADS": "1",
    }
    workers = [
        subprocess.Popen([sys.executable, "worker.py", *more], cwd=tmp_path, env=variables)
        for more in (["3"], ["4", "and forks"])
    ]
    assert [each.wait(120) for each in workers] == [0, 0]
    registry = client.CollectorRegistry()
    multiprocess.MultiProcessCollector(registry, path=str(shared))  # type: ignore[no-untyped-call]
    total = 3 + (4 + 5 + 7 + 1)
    assert samples(registry) == {
        ("vllm_ir_calls_total", "counted", "native"): total,
        ("vllm_ir_refusals_total", "counted", "picky", "needs one dimension"): total,
    }
    assert len(list(shared.glob("counter_*.db"))) == 4


def test_a_count_that_was_begun_anew_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts only grow, also where an op was registered again under its name."""
    counts = iter([{("op", "p"): 5}, {("op", "p"): 7}, {("op", "p"): 2}])
    monkeypatch.setattr(prometheus, "count", lambda: {prometheus.CALLS: next(counts)})
    publisher = prometheus.Publisher(3600)
    for wanted in (5, 7, 9):
        publisher.publish()
        assert publisher._metrics[prometheus.CALLS].labels("op", "p")._value.get() == wanted


def test_a_disk_that_takes_nothing_is_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker goes on."""
    publisher = prometheus.Publisher(3600)

    def full() -> None:
        """Be a disk without room."""
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publisher, "_write", full)
    publisher._try()
    publisher._try()
    assert [each.getMessage() for each in caplog.records].count(caplog.records[0].getMessage()) == 1
    assert "No space left on device" in caplog.text


def test_what_cannot_be_seen_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Counting is off; or the folder was named too late for the library."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "anywhere")
    with isolated(), caplog.at_level(logging.WARNING, logger="vllm_ir"):
        prometheus.register_collector(client.CollectorRegistry())
    assert "not counted; set VLLM_IR_COUNTERS=1 before start" in caplog.text
    assert "PROMETHEUS_MULTIPROC_DIR was set after prometheus_client was imported" in caplog.text


def test_a_folder_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library would fail at the first count, in the middle of a request."""
    monkeypatch.setattr(values, "ValueClass", type("Shared", (), {"_multiprocess": True}))
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "absent"))
    with isolated({"VLLM_IR_COUNTERS": "1"}), pytest.raises(MalformedVariable, match="wanted an existing folder"):
        prometheus.register_collector()


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is what to install."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(PrometheusMissing, match=r"pip install 'vllm-ir\[prometheus\]'"):
        prometheus.register_collector()


def test_publishing_where_nothing_goes_to_files_does_nothing() -> None:
    """A host may say so at its end whatever it is."""
    prometheus.publish()
