"""A real server on loopback, asked by the official client; its log says who runs, and a mistake stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 600
"""How long a server may take to start or to end; a busy machine takes minutes."""


def command(model: str, *arguments: str) -> list[str]:
    """Return the command line of a small server."""
    small = ["--max-model-len", "128", "--max-num-seqs", "16", "--dtype", "bfloat16", "--enforce-eager"]
    return [sys.executable, str(Path(__file__).with_name("serve.py")), "serve", model, *small, *arguments]


@contextlib.contextmanager
def serving(vllm: Any, log: Path, *arguments: str, **variables: str) -> Iterator[str]:
    """Serve while open, and give the address; the server and all its processes are gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    line = command(vllm.model, "--host", "127.0.0.1", "--port", port, *arguments)
    with log.open("w", encoding="utf-8") as out:
        env = vllm.variables(**variables)
        server = subprocess.Popen(line, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        _wait(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(60)


def _wait(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5):  # noqa: S310 - on loopback
            return
        time.sleep(1)
    raise AssertionError(log.read_text(encoding="utf-8")[-3000:])


def metrics(address: str, wanted: str) -> str:
    """Return what a scrape gets, once it has a metric; workers write theirs every few seconds."""
    end, found = time.monotonic() + 60, ""
    while wanted not in found and time.monotonic() < end:
        time.sleep(1)
        with urllib.request.urlopen(f"{address.removesuffix('/v1')}/metrics", timeout=30) as reply:  # noqa: S310 - ours
            found = reply.read().decode()
    return found


def test_two_clients_at_once_and_log_and_metrics_say_who_runs(vllm: Any, tmp_path: Path) -> None:
    """The flag of vLLM names our provider; both clients get the answers of a lone one."""
    log, counts = tmp_path / "server.log", tmp_path / "counts"
    counts.mkdir()
    openai = import_module("openai")
    # Their next tokens are far ahead of all others, so that it is the same answer in whichever batch it is made.
    questions = ["What is the boiling point of water?", "Name the largest planet."]

    def ask(address: str, question: str) -> str:
        """Ask one question, greedily."""
        client = openai.OpenAI(base_url=address, api_key="none")
        messages = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model=vllm.model, messages=messages, temperature=0, max_tokens=8)
        return str(reply.choices[0].message.content)

    flags = ("--ir-op-priority.rms_norm=cpu_c", "--fail-on-environ-validation")
    counting = {"VLLM_IR_COUNTERS": "1", "PROMETHEUS_MULTIPROC_DIR": str(counts)}
    with serving(vllm, log, *flags, **counting) as address:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda question: ask(address, question), questions))
        alone = [ask(address, question) for question in questions]
        scraped = metrics(address, 'vllm_ir_calls_total{op="rms_norm",provider="cpu_c"}')
    assert answers == alone
    assert answers[0].startswith("The boiling point of water")
    assert answers[1].startswith("The largest planet in")
    assert 'vllm_ir_calls_total{op="rms_norm",provider="cpu_c"}' in scraped
    assert 'vllm_ir_calls_total{op="silu_and_mul",provider="cpu_c"}' in scraped
    assert "vllm:generation_tokens_total" in scraped
    said = log.read_text(encoding="utf-8")
    assert "adopt mode; added to vLLM's ops: rms_norm by cpu_c, fused_add_rms_norm by cpu_c; providers: " in said
    assert "IrOpPriorityConfig(rms_norm=['cpu_c', 'native']" in said
    assert "vllm-ir, layers on ops: SiluAndMul by cpu_c" in said


MISTAKES = {
    "no such provider": ("--ir-op-priority.rms_norm=cpu_d",),
    "no such provider of ours": ("--additional-config", '{"vllm_ir": {"ir_op_priority": {"silu_and_mul": ["cpu_d"]}}}'),
}
"""What a user may get wrong, as arguments of a server."""


@pytest.fixture(scope="module")
def ended(vllm: Any) -> dict[str, subprocess.CompletedProcess[str]]:
    """Give how the servers ended that were started by mistakes, side by side."""

    def start(mistake: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        """Start a server and wait until it has ended."""
        line, env = command(vllm.model, *mistake), vllm.variables()
        return subprocess.run(line, capture_output=True, text=True, check=False, env=env, timeout=SECONDS)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(MISTAKES, pool.map(start, MISTAKES.values()), strict=True))


def test_a_provider_that_is_not_there_stops_the_server(ended: Any) -> None:
    """With another exit code than 0, and a sentence."""
    done = ended["no such provider"]
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "--ir-op-priority.rms_norm: provider 'cpu_d' is not installed" in said
    assert "Did you mean 'cpu_c'?" in said


def test_an_additional_configuration_that_cannot_be_read_stops_the_server(ended: Any) -> None:
    """In the process that the user started."""
    done = ended["no such provider of ours"]
    assert done.returncode != 0
    assert "provider 'cpu_d' for op 'silu_and_mul' is not installed" in done.stdout + done.stderr
