"""Doing a thing once a process: threads, recursion, imports and forks."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from vllm_ir.once import Once

if TYPE_CHECKING:
    from pathlib import Path


def test_many_threads_do_it_once_and_all_get_the_result() -> None:
    """Whoever comes while it is being done waits."""
    once: Once[object] = Once()
    calls: list[int] = []
    start = threading.Barrier(8)

    def work() -> object:
        """Take a while."""
        calls.append(1)
        time.sleep(0.05)
        return object()

    results: list[object] = []

    def ask() -> None:
        """Ask at the same time as the others."""
        start.wait()
        results.append(once.get(work))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(results) == 8
    assert {id(result) for result in results} == {id(once.result)}


def test_the_work_itself_sees_no_result_and_does_not_wait() -> None:
    """A call from inside comes back at once."""
    once: Once[str] = Once()
    inner: list[str | None] = []

    def work() -> str:
        """Ask for the result while making it."""
        inner.append(once.get(work))
        return "done"

    assert once.get(work) == "done"
    assert inner == [None]


def test_what_fails_is_tried_again() -> None:
    """An operator who mends a variable in a running interpreter is not held to the old error."""
    once: Once[str] = Once()
    attempts: list[int] = []

    def work() -> str:
        """Fail the first time."""
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("first")
        return "second"

    with pytest.raises(ValueError, match="first"):
        once.get(work)
    assert once.result is None
    assert once.get(work) == "second"


def test_a_thread_that_waits_too_long_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The work may be waiting for that very thread."""
    once: Once[str] = Once(patience=0.05)
    inner: list[str | None] = []

    def work() -> str:
        """Wait for a thread that asks for the result."""
        thread = threading.Thread(target=lambda: inner.append(once.get(work)))
        thread.start()
        thread.join()
        return "done"

    assert once.get(work) == "done"
    assert inner == [None]
    assert "still going on in another thread" in caplog.text


def test_a_thread_in_the_middle_of_an_import_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work may be waiting for the lock of the module that this thread imports: neither would ever go on."""
    once: Once[str] = Once(patience=30)
    (tmp_path / "synthetic_asking.py").write_text(
        "import sys\nANSWER = sys.modules['synthetic_meeting'].ask()\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    began, importing = threading.Event(), threading.Event()

    class Meeting:
        """Stands for a module that the importing one calls."""

        @staticmethod
        def ask() -> str | None:
            """Ask for the result while the module is being imported."""
            importing.set()
            return once.get(lambda: "never")

    def work() -> str:
        """Import the module that another thread is importing."""
        began.set()
        importing.wait(10)
        importlib.import_module("synthetic_asking")
        return "done"

    monkeypatch.setitem(sys.modules, "synthetic_meeting", Meeting)
    worker = threading.Thread(target=lambda: once.get(work))
    worker.start()
    began.wait(10)
    started = time.monotonic()
    module = importlib.import_module("synthetic_asking")
    worker.join(20)
    assert not worker.is_alive()
    assert time.monotonic() - started < 10
    assert (module.ANSWER, once.result) == (None, "done")
    del sys.modules["synthetic_asking"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, which this system has not")
def test_a_forked_child_keeps_the_result() -> None:
    """What is done is done in the child as well."""
    once: Once[str] = Once()
    once.get(lambda: "parent")
    assert in_child(lambda: once.get(lambda: "child")) == "parent"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, which this system has not")
def test_a_child_forked_in_the_middle_does_it_itself() -> None:
    """The thread that worked has not come along, and its lock would never be opened."""
    once: Once[str] = Once(patience=20)
    began, go = threading.Event(), threading.Event()

    def work() -> str:
        """Note a part as done, then wait."""
        once.finished["part"] = "kept"
        began.set()
        go.wait(20)
        return "parent"

    worker = threading.Thread(target=lambda: once.get(work))
    worker.start()
    began.wait(10)
    try:
        assert in_child(lambda: f"{once.get(lambda: 'child')} {once.finished['part']}") == "child kept"
    finally:
        go.set()
        worker.join()
    assert once.result == "parent"


def in_child(ask: object) -> str:
    """Return what a forked child answers."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(ask()).encode())  # type: ignore[operator]
        finally:
            os._exit(0)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert status == 0
    with os.fdopen(reading, encoding="utf-8") as answer:
        return answer.read()
