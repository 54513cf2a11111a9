"""Ranks that really run, once for all tests; and a group whose other ranks are pretended, for graphs that never run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from vllm_ir import compile as compile_model
from vllm_ir import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.compile import GraphPass
    from vllm_ir.graphs import PassRecord
    from vllm_ir.runtime import Runtime

Told = dict[str, dict[str, Any]]
"""What one rank has seen, by scenario."""


def run_ranks(size: int, folder: Path) -> list[Told]:
    """Return what each of some processes has seen that run together over gloo."""
    program = Path(__file__).with_name("ranks.py")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    # Asked for its own name, gloo may wait for a name server that is not there.
    variables = {**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(program), str(folder), str(size)],
        cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: list[Told] = [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
    failed = [each["failed"] for rank in told for each in rank.values() if "failed" in each]
    assert failed == [], failed[0]
    return told


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Give what each of two ranks has seen."""
    return run_ranks(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[Told]:
    """Give what each of four ranks has seen."""
    return run_ranks(4, tmp_path_factory.mktemp("four"))


@pytest.fixture
def pretended() -> Iterator[Any]:
    """Give the group of four ranks in which this process is the second, and the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture
def transform(state: Runtime, pretended: Any) -> Callable[..., tuple[torch.fx.GraphModule, PassRecord]]:
    """Return a function that compiles another one with a pass, and returns its graph and what the pass did."""
    assert state is not None
    assert pretended is not None

    def run(
        function: Callable[..., Any], made: GraphPass, *args: Any, **options: Any
    ) -> tuple[torch.fx.GraphModule, PassRecord]:
        """Compile a function, and call it with what nobody adds up."""
        graphs: list[torch.fx.GraphModule] = []

        def keep(module: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
            """Keep a graph and let torch run it."""
            graphs.append(module)
            return module

        compile_model(function, passes=[made], lower_to=keep, **options)(*args)
        # What is not whole is no backward graph, which comes last where there is one.
        records = [each for graph in report().graphs[-1:] for each in graph.passes if each.name == made.name]
        return graphs[0], records[0]

    return run
