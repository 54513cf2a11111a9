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

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 300


def command(model: str, *arguments: str) -> list[str]:
    """Return the command line of a small server."""
    small = ["--max-model-len", "512", "--max-num-seqs", "16", "--dtype", "bfloat16", "--enforce-eager"]
    return [sys.executable, str(Path(__file__).with_name("serve.py")), "serve", model, *small, *arguments]


@contextlib.contextmanager
def serving(vllm: Any, log: Path, *arguments: str) -> Iterator[str]:
    """Serve while open, and give the address; the server and all its processes are gone afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    line = command(vllm.model, "--host", "127.0.0.1", "--port", port, *arguments)
    with log.open("w", encoding="utf-8") as out:
        server = subprocess.Popen(line, stdout=out, stderr=out, env=vllm.variables(), start_new_session=True)
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


def test_two_clients_at_once_and_the_log_says_who_runs(vllm: Any, tmp_path: Path) -> None:
    """The flag of vLLM names our provider; both clients get the answers of a lone one."""
    log = tmp_path / "server.log"
    openai = import_module("openai")
    questions = ["What is the capital of France?", "Who wrote Hamlet?"]

    def ask(address: str, question: str) -> str:
        """Ask one question, greedily."""
        client = openai.OpenAI(base_url=address, api_key="none")
        messages = [{"role": "user", "content": question}]
        reply = client.chat.completions.create(model=vllm.model, messages=messages, temperature=0, max_tokens=12)
        return str(reply.choices[0].message.content)

    flags = ("--ir-op-priority.rms_norm=cpu_c", "--fail-on-environ-validation")
    with serving(vllm, log, *flags) as address:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda question: ask(address, question), questions))
        alone = [ask(address, question) for question in questions]
    assert "Paris" in answers[0]
    assert answers[0] == alone[0]
    said = log.read_text(encoding="utf-8")
    assert "adopt mode; added to vLLM's ops: rms_norm by cpu_c, fused_add_rms_norm by cpu_c" in said
    assert "IrOpPriorityConfig(rms_norm=['cpu_c', 'native']" in said
    assert "vllm-ir, layers on ops: SiluAndMul" in said


def test_a_provider_that_is_not_there_stops_the_server(vllm: Any) -> None:
    """With another exit code than 0, and a sentence."""
    line = command(vllm.model, "--ir-op-priority.rms_norm=cpu_d")
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=vllm.variables(), timeout=SECONDS)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "--ir-op-priority.rms_norm: provider 'cpu_d' is not installed" in said
    assert "Did you mean 'cpu_c'?" in said


def test_an_additional_configuration_that_cannot_be_read_stops_the_server(vllm: Any) -> None:
    """In the process that the user started."""
    line = command(vllm.model, "--additional-config", '{"vllm_ir": {"ir_op_priority": {"silu_and_mul": ["cpu_d"]}}}')
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=vllm.variables(), timeout=SECONDS)
    assert done.returncode != 0
    assert "provider 'cpu_d' for op 'silu_and_mul' is not installed" in done.stdout + done.stderr
