"""Facts that are worked out once: threads, errors, forks, forgetting."""

from __future__ import annotations

import os
import threading
import time
from weakref import WeakKeyDictionary

import pytest
from vllm_ir.memo import Memo


def test_a_fact_is_worked_out_once_whatever_the_number_of_threads() -> None:
    """Eight threads that ask at once get one answer, and one of them has worked."""
    memo: Memo[str, object] = Memo()
    worked: list[int] = []
    start = threading.Barrier(8)
    answers: list[object] = []

    def work_out() -> object:
        """Take a while."""
        worked.append(1)
        time.sleep(0.05)
        return object()

    def ask() -> None:
        """Ask at the same time as the others."""
        start.wait()
        answers.append(memo.get("key", work_out))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worked) == 1
    assert len(answers) == 8
    assert len({id(answer) for answer in answers}) == 1


def test_an_error_is_not_kept() -> None:
    """Who asks after a failure gets a try of his own."""
    memo: Memo[str, str] = Memo()

    def fail() -> str:
        """Fail."""
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - it has no text
        memo.get("key", fail)
    assert memo.get("key", lambda: "fact") == "fact"


def test_a_fact_may_need_another() -> None:
    """Working one out may ask for a second one."""
    memo: Memo[str, str] = Memo()
    assert memo.get("outer", lambda: memo.get("inner", lambda: "in") + "side") == "inside"


def test_a_forgotten_fact_is_worked_out_again() -> None:
    """A test can change what a process finds."""
    memo: Memo[str, int] = Memo()
    assert memo.get("key", lambda: 1) == 1
    memo.forget()
    assert memo.get("key", lambda: 2) == 2


def test_weak_keys_let_go() -> None:
    """A function that is gone keeps no memory."""
    store: WeakKeyDictionary[object, int] = WeakKeyDictionary()
    memo: Memo[object, int] = Memo(store)

    class Key:
        """Something that can be referred to weakly."""

    key = Key()
    assert memo.get(key, lambda: 1) == 1
    assert len(store) == 1
    del key
    assert len(store) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork beside threads is what this is about
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_forked_in_the_middle_goes_on() -> None:
    """A lock that a lost thread held does not hold up the child."""
    memo: Memo[str, int] = Memo()
    inside, leave = threading.Event(), threading.Event()

    def work_out() -> int:
        """Stay inside until the child is made."""
        inside.set()
        leave.wait(30)
        return 1

    thread = threading.Thread(target=lambda: memo.get("slow", work_out))
    thread.start()
    inside.wait(30)
    child = os.fork()
    if child == 0:
        threading.Timer(20, lambda: os._exit(2)).start()
        os._exit(0 if memo.get("other", lambda: 7) == 7 else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
