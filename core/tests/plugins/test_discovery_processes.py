"""One discovery a process: threads share it, its log has one summary, and a digest tells whether processes agree."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import ops, plugins  # noqa: E402 - after the check for torch
from vllm_ir.isolation import isolated  # noqa: E402
from vllm_ir.plugins import discovery  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.plugins.outcome import Discovery

    from core.tests.plugins.conftest import Site

X = torch.zeros(2, 4)
ASKS = '[providers.fake.default.eager]\nrms_norm = ["cpu"]\n'


def load() -> Discovery:
    """Load what is on the path and return what came of it."""
    found = discovery.load_providers()
    assert found is not None
    return found


def manifest(more: str = "", *, top: str = "", ops: str = "rms_norm = {}", provider: str = "fake") -> str:
    """Return the text of a manifest with one provider for the CPU."""
    return (
        f'schema = 1\nprovider-api = "1"\nsummary = "x"\n{top}\n'
        f"[providers.{provider}.platforms]\ncpu = {{}}\n[providers.{provider}.ops]\n{ops}\n{more}"
    )


@pytest.mark.usefixtures("discovering")
def test_threads_that_call_at_once_all_get_the_loaded_provider(site: Site) -> None:
    """One of them loads, the others wait; none of them runs on native."""
    site.provider(
        text=manifest(ASKS),
        hooks=(
            "import time\ntime.sleep(0.2)\n"
            "from vllm_ir import hookimpl\n@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n    return [kernels.rms_norm]\n"
        ),
    )
    results: list[bool] = []
    start = threading.Barrier(6)

    def call() -> None:
        """Call the op together with the others."""
        start.wait()
        results.append(torch.equal(ops.rms_norm(X, None, 1e-5), X + 1))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 6


@pytest.mark.usefixtures("discovering")
def test_the_summary_is_logged_once_and_can_be_shown_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A program that configures logging late asks for it again."""
    site.provider()
    site.provider("synthetic-broken", package="synthetic_broken", provider="broken", hooks="1 / 0\n")
    assert discovery.show_summary() is None
    with caplog.at_level(logging.INFO, logger="vllm_ir"):
        found = load()
        load()
    lines = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert lines == [found.summary]
    assert f"native serves {len(ops.__all__)} ops" in found.summary
    assert "fake serves 1 op" in found.summary
    assert "broken (broken import)" in found.summary
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="vllm_ir"):
        assert discovery.show_summary() == found.summary
    assert [each.getMessage() for each in caplog.records] == [found.summary]


@pytest.mark.usefixtures("discovering")
def test_a_denied_name_that_looks_like_a_mistake_is_a_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt deny list lets the provider run, which nobody wanted."""
    site.provider()
    with isolated({"VLLM_IR_PROVIDERS_DISABLED": "fakee"}, loader=plugins.load_providers):
        load()
    assert "VLLM_IR_PROVIDERS_DISABLED names 'fakee', which nothing here has. Did you mean 'fake'?" in caplog.text


@pytest.mark.usefixtures("discovering")
def test_the_digest_tells_whether_processes_agree(make_site: Callable[[str], Site]) -> None:
    """The same wheels in another folder give the same digest; a break gives another."""
    digests: list[str] = []
    for name, broken in (("one", False), ("two", False), ("three", True)):
        site = make_site(name)
        for package in ("vllm_ir_provider_fake", *site.packages):
            for module in [each for each in sys.modules if each.split(".")[0] == package]:
                del sys.modules[module]
        site.provider(hooks="1 / 0\n" if broken else None)
        with isolated(loader=plugins.load_providers):
            found = load()
            assert [len(each.shadowed) for each in found.distributions if each.name.endswith("fake")] == [len(digests)]
            digests.append(found.digest)
    assert digests[0] == digests[1] != digests[2]


def test_spawned_and_forked_processes_agree(site: Site) -> None:
    """Each process discovers for itself, a forked one keeps what its parent found; one digest for all."""
    site.provider(
        hooks=(
            "import os\nfrom vllm_ir import hookimpl\nIMPORTED_IN = os.getpid()\n"
            "@hookimpl\ndef vllm_ir_implementations(platform):\n"
            "    from vllm_ir_provider_fake import kernels\n    return [kernels.rms_norm]\n"
        )
    )
    site.write(
        "synthetic_workers.py",
        """
        import multiprocessing
        import os
        import sys

        def look(_):
            from vllm_ir.plugins import discovery
            found = discovery.load_providers()
            hooks = sys.modules["vllm_ir_provider_fake.hooks"]
            return found.digest, hooks.IMPORTED_IN == os.getpid()

        if __name__ == "__main__":
            print(*look(0))
            for way in ("spawn", "fork"):
                with multiprocessing.get_context(way).Pool(1) as pool:
                    print(*pool.map(look, [0])[0])
        """,
    )
    done = subprocess.run(
        [sys.executable, str(site.path / "synthetic_workers.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site.path), os.environ.get("PYTHONPATH", "")])},
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [own for _, own in rows] == ["True", "True", "False"], done.stderr
    assert len({digest for digest, _ in rows}) == 1
