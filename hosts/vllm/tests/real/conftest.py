"""Tests on a real vLLM for CPUs, with the real weights of the default model; skipped, all of them, where it is missing.

`nox -s host_vllm` makes the environment that they need. Every run of an engine is a process of its own, one at a time.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from vllm_ir.environment import Environment

HERE = Path(__file__).parent
NEEDS = ("vllm", "vllm_ir_host_transformers", "vllm_ir_provider_cpu_c", "openai")

QUIET = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a bound thread waits for the processes of others on its core
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a vLLM, with what is missing; tests of other folders are none of this one's business."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        reason = f"needs a real vLLM; missing: {', '.join(missing)} (nox -s host_vllm makes such an environment)"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Vllm:
    """Runs engines, and remembers what they answered."""

    scratch: Path
    _found: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def model(self) -> str:
        """The folder of the default model, fetched and converted once by the Transformers host."""
        default = import_module("vllm_ir_host_transformers.models.default")
        steps = import_module("vllm_ir_host_transformers.models.steps")
        return str(default.default_model(Environment.read().cache, steps.Silence()))

    def run(self, *runs: dict[str, Any], **variables: str) -> dict[str, Any]:
        """Run engines one after the other in a process with these variables, and return what came of each."""
        plan, out = self.scratch / "plan.json", self.scratch / "out.json"
        plan.write_text(json.dumps(runs), encoding="utf-8")
        out.unlink(missing_ok=True)
        done = self.python(str(HERE / "engine.py"), self.model, str(plan), str(out), **variables)
        if not out.is_file():
            pytest.fail(f"no answers: {done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        for each in found.values():
            each["log"] = done.stdout + done.stderr
        return found

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the variables of these tests and some more."""
        env = {**self.variables(), "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **variables}
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=900)

    def variables(self) -> dict[str, str]:
        """Return the variables of this process, quiet."""
        return {**os.environ, **QUIET}

    def once(self, key: str, *runs: dict[str, Any], **variables: str) -> Any:
        """Return what a run answered, and run its plan if nobody has."""
        if key not in self._found:
            self._found.update(self.run(*runs, **variables))
        return self._found[key]


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Vllm:
    """Give what runs engines."""
    return Vllm(tmp_path_factory.mktemp("vllm"))
