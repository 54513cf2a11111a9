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
        LockUnreadable(file="a.lock", reason="it is a folder", fix="Name a file."),
        "a.lock cannot be read: it is a folder. Name a file.",
    ),
    (
        LockUnwritable(file="a/b.lock", reason="no such file or directory", fix="Make the folder 'a'"),
        (
            "a/b.lock was not written: no such file or directory. What was there before is unchanged."
            " Make the folder 'a', or name another file: --lock FILE."
        ),
    ),
    (
        LockUnwritable(file="/dev/full", reason="it is a device", fix=None),
        (
            "/dev/full was not written: it is a device. What was there before is unchanged."
            " Name another file: --lock FILE."
        ),
    ),
    (
        NotLocked(distribution="a", file="my a.lock"),
        (
            "Distribution a is not in VLLM_IR_LOCK=my a.lock, so it is not loaded."
            " To use it, write the lock anew with `vllm-ir lock --lock 'my a.lock'`."
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
            " control, or remove it and write it anew with `vllm-ir lock --lock a.lock`."
        ),
    ),
    (
        Unlockable(
            distributions=[("a", "it is installed editable"), ("b", "its installer left no RECORD")],
            fixes=["Install the wheel: pip install a==1", "So install it by: rm b && pip install b==1"],
        ),
        (
            "No digest can be taken of a: it is installed editable; b: its installer left no RECORD. Install the wheel:"
            " pip install a==1. So install it by: rm b && pip install b==1. Or lock without a digest by"
            " --allow-editable; VLLM_IR_LOCK never accepts such a lock."
        ),
    ),
    (
        NotLocked(distribution="a", file="a.lock", command="vllm-ir lock --lock a.lock --platform cpu"),
        (
            "Distribution a is not in VLLM_IR_LOCK=a.lock, so it is not loaded."
            " To use it, write the lock anew with `vllm-ir lock --lock a.lock --platform cpu`."
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
        f"op rms_norm, eager: locked {words[0]}, found {words[1]}. See who put it there: vllm_ir.explain('rms_norm') in"
        " the process, or vllm-ir explain rms_norm --static. Neither a program nor a flag may change what is locked."
    )


def test_a_changed_order_of_graphs_is_asked_about_as_such() -> None:
    """The commands carry the mode."""
    said = str(changed_order("rms_norm", "compiling", ["native"], ["fast", "native"]))
    assert "vllm_ir.explain('rms_norm', compiling=True) in the process" in said
    assert "vllm-ir explain rms_norm --static --compiling. Neither" in said
