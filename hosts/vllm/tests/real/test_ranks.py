"""Three workers that share one model: all select the same kernels, or the server does not start.

The default model has nine heads, so that three ranks can share them and two cannot.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

RANKS = 3

RANK_ENV = """
import multiprocessing, os

def register():
    if multiprocessing.current_process().name == "VllmWorker-1":
        os.environ["VLLM_IR_OP_PRIORITY"] = "silu_and_mul=native"
"""
"""A plugin of vLLM that gives one rank another variable, as a machine does that was set up otherwise."""


def ask(vllm: Any, folder: Path, **variables: str) -> tuple[Any, subprocess.CompletedProcess[str]]:
    """Return what an engine of three ranks answered, None where it did not start, and how its process ended."""
    out = folder / "answers.json"
    kernels = {"ir_op_priority": {"rms_norm": ["cpu_c"], "fused_add_rms_norm": ["cpu_c"]}}
    more = {"tensor_parallel_size": RANKS, "distributed_executor_backend": "mp", "kernel_config": kernels}
    # Workers wait for each other by spinning, which three on two cores do for long.
    run = {"eager": True, "more": more, "tokens": 4, "out": str(out)}
    script = str(Path(__file__).with_name("engine.py"))
    done = subprocess.run(
        [sys.executable, script, vllm.model],
        input=json.dumps(run),
        capture_output=True,
        text=True,
        check=False,
        env=vllm.variables(VLLM_ENABLE_V1_MULTIPROCESSING="0", **variables),
        timeout=900,
    )
    return json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None, done


@pytest.fixture(scope="module")
def agreeing(vllm: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give answers, log and counts of an engine whose ranks agree."""
    folder, counts = tmp_path_factory.mktemp("ranks"), tmp_path_factory.mktemp("counts")
    found, done = ask(vllm, folder, VLLM_IR_COUNTERS="1", PROMETHEUS_MULTIPROC_DIR=str(counts))
    assert found is not None, done.stderr[-3000:]
    return found, done.stdout + done.stderr, counts


def test_ranks_that_agree_answer(agreeing: Any) -> None:
    """Each replaced its layers, and none was stopped; a sum over ranks rounds otherwise, but no answer here is near."""
    found, said, _ = agreeing
    assert found["answers"][6]["text"] == "The boiling point of"
    assert found["answers"][7]["text"] == "The largest planet in"
    assert said.count("vllm-ir, layers on ops: SiluAndMul") == RANKS


def test_what_every_rank_counts_is_seen_from_outside(agreeing: Any) -> None:
    """The counts of all workers add up in the folder that they share, as for a server that is scraped."""
    *_, folder = agreeing
    registry = import_module("prometheus_client").CollectorRegistry()
    import_module("prometheus_client.multiprocess").MultiProcessCollector(registry, path=str(folder))
    calls = {
        op: registry.get_sample_value("vllm_ir_calls_total", {"op": op, "provider": "cpu_c"})
        for op in ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
    }
    assert all(calls.values()), calls
    assert {int(each or 0) % RANKS for each in calls.values()} == {0}
    # Thirty layers have two norms each, and all but the first of a pass come with a residual; one more ends the pass.
    assert calls["fused_add_rms_norm"] == 60 * (calls["rms_norm"] or 0)
    assert calls["silu_and_mul"] == 30 * (calls["rms_norm"] or 0)


@pytest.mark.full
def test_a_rank_that_would_run_other_kernels_stops_the_start(vllm: Any, tmp_path: Path) -> None:
    """Every rank says which one differs, and in what."""
    info = tmp_path / "rank_env-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rank-env\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nrank_env = rank_env:register\n", encoding="utf-8")
    (tmp_path / "rank_env.py").write_text(RANK_ENV, encoding="utf-8")
    found, done = ask(vllm, tmp_path, PYTHONPATH=str(tmp_path))
    assert found is None
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "op silu_and_mul, eager: ranks 0, 2 have" in said
    assert "rank 1 has native@" in said
