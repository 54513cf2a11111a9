"""What plain torch.compile has cached is never served for another selection, in this process or in a later one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.compiler.config
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm

PROGRAM = """
import json, sys, torch
from torch import Tensor
from torch._dynamo.utils import counters
from vllm_ir import ops, register_op

@ops.rms_norm.register_impl("a")
def ones(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return torch.ones_like(x)

factor, *steps = sys.argv[1:]
scope = {"Tensor": Tensor}
exec(f"def scaled(x: Tensor) -> Tensor:\\n    return x * {factor}", scope)
scaled = register_op(scope["scaled"])
x, w = torch.full((4, 8), 3.0), torch.full((8,), 0.5)
programs = {
    "op": lambda: ops.rms_norm(x, w, 1e-5) + 1,
    "scaled": lambda: scaled(x) + 1,
    "none": lambda: (x + w).sin(),
}
for step in steps:
    kind, _, value = step.partition("=")
    if kind == "default":
        ops.rms_norm.set_default(value)
    elif kind == "tag":
        torch.compiler.config.cache_key_tag = value
    else:
        torch._dynamo.reset()
        counters.clear()
        with torch.no_grad():
            result = torch.compile(programs[kind], fullgraph=True)()
        hit = counters["aot_autograd"]["autograd_cache_hit"]
        print(json.dumps([round(result[0, 0].item(), 3), "hit" if hit else "miss"]))
"""


def run(folder: Path, factor: int, *steps: str) -> list[Any]:
    """Run steps in a fresh process; return for each compilation the first value of its result, and "hit" or "miss"."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TORCHINDUCTOR_VEC_ISA_OK": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(factor), *steps],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_cache_is_shared_by_equal_selections_only(tmp_path: Path) -> None:
    """A changed priority, tag or native function misses, within a process and across; a graph without ops does not."""
    native, ones = 1.5, 2.0
    first = run(
        tmp_path, 2, "default=native", "op", "none", "default=a", "op", "none", "default=native", "op", "scaled"
    )
    assert first == [
        [native, "miss"],
        [pytest.approx(-0.351, abs=1e-3), "miss"],
        [ones, "miss"],
        [pytest.approx(-0.351, abs=1e-3), "hit"],
        [native, "hit"],
        [7.0, "miss"],
    ]
    again = run(tmp_path, 2, "default=a", "op", "default=native", "op", "scaled", "tag=mine", "op", "op")
    assert again == [[ones, "hit"], [native, "hit"], [7.0, "hit"], [native, "miss"], [native, "hit"]]
    assert run(tmp_path, 3, "default=native", "scaled") == [[10.0, "miss"]]


@pytest.fixture
def fresh(state: Runtime) -> Iterator[None]:
    """Give the test a process state and a Dynamo of its own, and the user's tag back."""
    assert state is not None
    torch._dynamo.reset()
    config: Any = torch.compiler.config
    with config.patch(cache_key_tag="mine"):
        yield
    torch._dynamo.reset()


class Keys:
    """A backend that keeps what of the tag would go into the key of each graph."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def __call__(self, module: torch.fx.GraphModule, example: Any) -> Any:
        """Run the graph as it is."""
        del example
        self.keys.append(copy.copy(torch.compiler.config.cache_key_tag))
        return module.forward

    def compile(self, *, with_op: bool = True) -> str:
        """Compile something and return its key."""

        def program(x: Tensor) -> Tensor:
            """Call an op, or none."""
            return rms(x, None, 1e-5) if with_op else x + 1

        torch._dynamo.reset()
        torch.compile(program, fullgraph=True, backend=self)(torch.randn(4, 8))
        return self.keys[-1]


@pytest.mark.usefixtures("fresh")
def test_the_tag_stays_the_users(add_provider: Any) -> None:
    """Only the key of a graph with ops in it says more, by the selection; whoever reads the tag sees the user's."""
    add_provider(rms, "a", 2.0)
    keys = Keys()
    native = keys.compile()
    assert native.startswith("mine|vllm_ir:")
    assert keys.compile() == native
    with rms.set_priority("a"):
        assert keys.compile() not in (native, "mine")
    assert keys.compile(with_op=False) == "mine"
    tag = torch.compiler.config.cache_key_tag
    assert tag == "mine"
    assert f"{tag}" == "mine"
    assert type(copy.copy(tag)) is str
    torch.compiler.config.cache_key_tag = "another"
    assert keys.compile() == native.replace("mine", "another")


@pytest.mark.usefixtures("fresh")
def test_threads_have_keys_of_their_own(add_provider: Any) -> None:
    """Threads that compile under different scopes never get each other's key, and leave the tag as it was."""
    add_provider(rms, "a", 2.0)
    wanted = {}
    for provider in ("a", "native"):
        with rms.set_priority(provider):
            wanted[provider] = Keys().compile().rpartition("|")[2]
    found: dict[str, list[str]] = {"a": [], "native": []}
    tags: list[tuple[str, str]] = []
    begin = threading.Barrier(2)

    def work(provider: str) -> None:
        """Compile a few times under a scope."""
        keys, before = Keys(), torch.compiler.config.cache_key_tag
        with rms.set_priority(provider):
            begin.wait(60)
            for _ in range(5):
                found[provider].append(keys.compile().rpartition("|")[2])
        tags.append((before, torch.compiler.config.cache_key_tag))

    threads = [threading.Thread(target=work, args=(provider,)) for provider in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == {provider: [key] * 5 for provider, key in wanted.items()}
    assert wanted["a"] != wanted["native"]
    assert len(tags) == 2
    assert all(before == after for before, after in tags)
    assert torch.compiler.config.cache_key_tag == "mine"
