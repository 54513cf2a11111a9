"""What is read about locks: each sentence names the file, what is wrong with it and what to type."""

from __future__ import annotations

import pickle

import pytest
from vllm_ir.errors import (
    ConfigurationError,
    Difference,
    IrError,
    LockMismatch,
    LockUnreadable,
    LockUnwritable,
    MalformedLock,
    NotLocked,
    ProviderError,
    SelectionError,
    Unlockable,
    changed_order,
)

CASES = [
    (
        LockMismatch(file="a.lock", differences=["one: locked 1, found 2. Mend it.", "two: locked 3, found 4. So."]),
        (
            "This process is not what VLLM_IR_LOCK=a.lock locks, so no op runs: 2 differences."
            " (1) one: locked 1, found 2. Mend it. (2) two: locked 3, found 4. So."
            " `vllm-ir check --lock a.lock` tells more."
        ),
    ),
    (
        LockUnreadable(file="a.lock", reason="no such file or directory"),
        (
            "a.lock cannot be read: no such file or directory. Write it with `vllm-ir lock --lock a.lock`, or name"
            " another file."
        ),
    ),
    (
        LockUnwritable(file="a.lock", reason="no space left on device"),
        (
            "a.lock was not written: no space left on device. What was there before is unchanged."
            " Make room there, or name another file: --lock FILE."
        ),
    ),
    (
        MalformedLock(file="a.lock", key="core.version", got="int 7", wanted="a version"),
        (
            "a.lock: core.version is int 7, wanted a version. A lock is not written by hand; take it from version"
            " control, or write it anew with `vllm-ir lock`."
        ),
    ),
    (
        Unlockable(distributions=[("a", "it is installed editable"), ("b", "its installer left no RECORD")]),
        (
            "No digest can be taken of a: it is installed editable; b: its installer left no RECORD. Install the wheel,"
            " or lock without a digest by --allow-editable; VLLM_IR_LOCK never accepts such a lock."
        ),
    ),
    (
        NotLocked(distribution="a", file="a.lock"),
        (
            "Distribution a is not in VLLM_IR_LOCK=a.lock, so it is not loaded."
            " To use it, write the lock anew with `vllm-ir lock --lock a.lock`."
        ),
    ),
]


@pytest.mark.parametrize(("error", "sentence"), CASES, ids=lambda value: type(value).__name__)
def test_the_sentence(error: IrError, sentence: str) -> None:
    """A reader learns what went wrong and what to type."""
    assert str(error) == sentence


@pytest.mark.parametrize("error", [case[0] for case in CASES], ids=lambda value: type(value).__name__)
def test_it_pickles(error: IrError) -> None:
    """A worker's error arrives whole, its facts as attributes."""
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made one line above
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_who_catches_what() -> None:
    """A file is a mistake of the user's, a mismatch means that nothing may run, a stranger is a record."""
    kinds = {type(error): type(error).__mro__ for error, _ in CASES}
    assert {kind for kind, above in kinds.items() if SelectionError in above} == {LockMismatch}
    assert {kind for kind, above in kinds.items() if ProviderError in above} == {NotLocked}
    assert {kind for kind, above in kinds.items() if ConfigurationError in above} == {
        LockUnreadable,
        LockUnwritable,
        MalformedLock,
        Unlockable,
    }
    assert NotLocked.fault is False


def test_a_difference_is_a_line() -> None:
    """What, locked, found, how to mend."""
    assert str(Difference("core", "1", "2", "Install it.")) == "core: locked 1, found 2. Install it."


@pytest.mark.parametrize(("locked", "found"), [(["fast", "native"], ["native"]), ([], ["native"]), (["native"], [])])
def test_a_changed_order_names_both(locked: list[str], found: list[str]) -> None:
    """An empty one in words."""
    words = [", ".join(names) or "nothing that may run" for names in (locked, found)]
    said = str(changed_order("rms_norm", "eager", locked, found))
    assert said == (
        f"op rms_norm, eager: locked {words[0]}, found {words[1]}. See who put it there: vllm-ir explain rms_norm."
        " Neither a program nor a flag may change what is locked."
    )
