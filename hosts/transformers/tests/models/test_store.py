"""The folder of kept files: for its owner alone, and nothing is taken from it that has changed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vllm_ir_host_transformers.models import store

FACTS = {"transformers": "5"}


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """Give a sealed folder with two files."""
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "a").write_bytes(b"a" * 100)
    (folder / "b").write_bytes(b"b")
    store.seal(folder, FACTS)
    return folder


def test_folders_are_made_for_their_owner_alone(tmp_path: Path) -> None:
    """Each one that was missing, not only the last."""
    assert store.usable(tmp_path / "one" / "two")
    assert [folder.stat().st_mode & 0o777 for folder in (tmp_path / "one", tmp_path / "one" / "two")] == [0o700] * 2


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    """Who can write there could put another model in its place."""
    tmp_path.chmod(0o777)
    assert not store.usable(tmp_path)


def test_a_path_that_cannot_be_a_folder_is_not_usable(tmp_path: Path) -> None:
    """A file stands in the way."""
    (tmp_path / "file").touch()
    assert not store.usable(tmp_path / "file" / "below")


def test_a_sealed_folder_is_whole(sealed: Path) -> None:
    """Nothing is wrong with what was just sealed."""
    assert store.damage(sealed, FACTS) is None


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / "a").write_bytes(b"a" * 99 + b"x"), "a has changed"),
        (lambda folder: (folder / "a").write_bytes(b"a" * 99), "a has changed"),
        (lambda folder: (folder / "b").unlink(), "b is missing"),
        (lambda folder: (folder / store.CHECKSUMS).unlink(), "its checksums cannot be read"),
        (lambda folder: (folder / store.CHECKSUMS).write_text("[]"), "its checksums cannot be read"),
        (lambda folder: (folder / store.CHECKSUMS).write_text("{"), "its checksums cannot be read"),
    ],
)
def test_every_damage_is_found(sealed: Path, harm: object, words: str) -> None:
    """A byte, a length, a file, the list itself."""
    assert callable(harm)
    harm(sealed)
    assert store.damage(sealed, FACTS) == words


def test_what_another_version_made_is_not_used(sealed: Path) -> None:
    """The sentence names both versions."""
    assert store.damage(sealed, {"transformers": "6"}) == "it was made with transformers 5, and this is 6"


def test_the_faster_of_two_wins(tmp_path: Path, sealed: Path) -> None:
    """A folder that is already in place stays, and the other one is no error."""
    with store.workshop(tmp_path) as shop:
        made = shop / "made"
        made.mkdir()
        (made / "c").touch()
        store.place(made, sealed)
    assert not (sealed / "c").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_move_that_fails_for_another_reason_is_an_error(tmp_path: Path) -> None:
    """Nothing stands there, so it was not another process."""
    with pytest.raises(OSError, match="missing"):
        store.place(tmp_path / "missing", tmp_path / "kept")


def test_removing_twice_is_no_error(sealed: Path) -> None:
    """Two processes may find the same damage."""
    store.remove(sealed)
    store.remove(sealed)
    assert list(sealed.parent.iterdir()) == []


def in_a_process(body: str) -> list[str]:
    """Run code in a process of its own that has a temporary folder with a file, and return the lines it printed."""
    start = (
        "import os, pathlib, sys\nfrom vllm_ir_host_transformers.models import store\n"
        "folder = store.temporary_folder()\n(folder / 'file').touch()\nprint(folder, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", start + body], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_temporary_folder_is_gone_when_its_process_ends() -> None:
    """It is for its owner alone while it is there."""
    folder, mode = in_a_process("print(oct(folder.stat().st_mode & 0o777))\n")
    assert mode == "0o700"
    assert not Path(folder).exists()


def test_a_forked_child_leaves_its_parents_folder_alone() -> None:
    """The child runs the same functions at its end, and the parent still reads the model."""
    body = (
        "child = os.fork()\nif child == 0:\n    sys.exit(0)\nos.waitpid(child, 0)\nprint((folder / 'file').exists())\n"
    )
    folder, there = in_a_process(body)
    assert there == "True"
    assert not Path(folder).exists()


def test_what_has_taken_the_name_is_not_removed() -> None:
    """Somebody else's folder of that name is not this process's to remove."""
    (folder,) = in_a_process("folder.rename(f'{folder}-mine')\nfolder.mkdir()\n(folder / 'theirs').touch()\n")
    assert (Path(folder) / "theirs").exists()
    for each in (folder, f"{folder}-mine"):
        shutil.rmtree(each)
