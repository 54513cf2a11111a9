"""Tests on a real vLLM for CPUs, with the real weights of the default model; skipped, all of them, where it is missing.

`nox -s host_vllm` makes the environment that they need, and leaves out what is marked `full`. Who is asked (stock
vLLM, one with this host, one with layers) is a process that stays, and makes one engine after the other in it.
What a test measured is told at the end of the run.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
NEEDS = ("vllm", "vllm_ir_host_transformers", "vllm_ir_provider_cpu_c", "openai")

SECONDS: Final = 1800
"""How long an engine may take before it counts as hanging: compiling takes a minute, on a busy machine several."""

TOLD: Final = "told"
"""What a test's measurements are recorded as."""

QUIET = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a bound thread waits for the processes of others on its core
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

HERE_TOO: Final = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Lets an engine run in the process that asks for it."""

VARIABLES: Final = {
    "stock": {"VLLM_IR_HOST": "0"},
    "adopt": {"VLLM_IR_COUNTERS": "1"},
    "layers": {"VLLM_IR_HOST_MODE": "layers", "VLLM_IR_COUNTERS": "1"},
    "without": {"VLLM_IR_COUNTERS": "1", "PYTHONDONTWRITEBYTECODE": "1"},  # links lead to the installed package
}
"""Who can be asked: vLLM with this host switched off, adopting, replacing layers, and one that has no `vllm.ir`."""


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of what takes too long for every change."""
    config.addinivalue_line("markers", "full: takes minutes more; `nox -s host_vllm -- --full` runs it, too")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell what was measured, in whichever process that was."""
    reports = [each for group in terminalreporter.stats.values() for each in group if hasattr(each, "user_properties")]
    told = {text: None for each in reports for name, text in each.user_properties if name == TOLD}
    if told:
        terminalreporter.section("measured")
        for text in told:
            terminalreporter.line(text)


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Give what takes a line that is to be read after the run."""
    return functools.partial(record_property, TOLD)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a vLLM, with what is missing; tests of other folders are none of this one's business."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        reason = f"needs a real vLLM; missing: {', '.join(missing)} (nox -s host_vllm makes such an environment)"
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass
class Asked:
    """A process that runs engines, one after the other, until it is ended."""

    process: subprocess.Popen[str]
    scratch: Path
    log: Path

    def ask(self, run: dict[str, Any]) -> Any:
        """Return what an engine answers."""
        out = self.scratch / f"{run['name']}.json"
        if self.process.stdin is None or self.process.poll() is not None:
            pytest.fail(f"nobody to ask: {self.said()[-3000:]}")
        self.process.stdin.write(json.dumps({**run, "out": str(out)}) + "\n")
        self.process.stdin.flush()
        end = time.monotonic() + SECONDS
        while not out.is_file():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"{run['name']}: no answers: {self.said()[-3000:]}")
            time.sleep(0.1)
        return json.loads(out.read_text(encoding="utf-8"))

    def said(self) -> str:
        """Return all that it has written."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """End it; it has answered, and taking a compiled model down would take it seconds."""
        self.process.kill()
        self.process.wait(30)
        if self.process.stdin is not None:
            self.process.stdin.close()


@dataclass
class Vllm:
    """Runs engines, and remembers what they answered."""

    scratch: Path
    _processes: dict[str, Asked] = field(default_factory=dict)
    _found: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def model(self) -> str:
        """The folder of the default model."""
        done = self.python(str(HERE / "model.py"))
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    @functools.cached_property
    def without(self) -> dict[str, str]:
        """The variables with which Python finds a vLLM that has no `vllm.ir`."""
        folder = self.scratch / "without"
        done = self.python(str(HERE / "without_ir.py"), str(folder))
        assert done.returncode == 0, done.stderr[-3000:]
        return {"PYTHONPATH": str(folder)}

    def answers(self, run: dict[str, Any]) -> Any:
        """Return what a run answered; asked anew only where nobody has."""
        return self.all(run)[0]

    def all(self, *runs: dict[str, Any]) -> list[Any]:
        """Return what runs answered; those of two processes go side by side, since a compiler uses one core."""
        todo: dict[str, list[dict[str, Any]]] = {}
        for run in runs:
            if run["name"] not in self._found:
                todo.setdefault(run["who"], []).append(run)
        asked = {who: self._process(who) for who in todo}

        def work(who: str) -> None:
            """Ask one process what it is to be asked."""
            for run in todo[who]:
                self._found[run["name"]] = asked[who].ask(run)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, sorted(todo, key=lambda who: -len(todo[who]))))
        return [self._found[run["name"]] for run in runs]

    def said(self, who: str) -> str:
        """Return the log of one process."""
        return self._process(who).said()

    def _process(self, who: str) -> Asked:
        """Return the process that is asked for these runs."""
        if who not in self._processes:
            log = self.scratch / f"{who}.log"
            with log.open("w", encoding="utf-8") as out:
                process = subprocess.Popen(
                    [sys.executable, str(HERE / "engine.py"), self.model],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=out,
                    text=True,
                    env=self.variables(**HERE_TOO, **VARIABLES[who], **(self.without if who == "without" else {})),
                )
            self._processes[who] = Asked(process, self.scratch, log)
        return self._processes[who]

    def python(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the variables of these tests and some more."""
        command, env = [sys.executable, *arguments], self.variables(**HERE_TOO, **variables)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=SECONDS)

    def variables(self, **more: str) -> dict[str, str]:
        """Return the variables of this process, quiet, and some more."""
        # Graphs that a test compares are compiled in its run, not found in the cache of whoever starts it.
        return {**os.environ, **QUIET, "VLLM_CACHE_ROOT": str(self.scratch / "cache"), **more}

    def end(self) -> None:
        """End every process."""
        for each in self._processes.values():
            each.end()


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """Give what runs engines."""
    made = Vllm(tmp_path_factory.mktemp("vllm"))
    yield made
    made.end()
