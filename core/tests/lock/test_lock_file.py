"""The file: the same bytes each time, whole or as before, and nothing that is no lock is read or overwritten."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from vllm_ir.errors import LockUnreadable, LockUnwritable, MalformedLock
from vllm_ir.lock.document import Lock, LockedDistribution, LockedPlatform, Place
from vllm_ir.lock.lock_file import LIMIT, read_lock, to_text, write_lock
from vllm_ir.lock.reading import parse_lock

DIGEST = f"sha256:{'ab' * 32}"
NATIVE = (Place("native", "built-in"),)
LOCK = Lock(
    core="0.1.0",
    provider_api=("1",),
    distributions={
        "vllm-ir": LockedDistribution("vllm-ir", "0.1.0", DIGEST, ("native",), DIGEST),
        "dist-b": LockedDistribution("dist-b", "1!2.0rc1+cu129", DIGEST, ("b", "b_slow"), None),
    },
    platforms={
        "cuda:8.0,9.0": LockedPlatform(
            "cuda",
            ("8.0", "9.0"),
            {"rms_norm": (Place("b", 'a "file" named \\é '), *NATIVE), "empty": ()},
            {"rms_norm": NATIVE},
            {"driver": "570.86", "toolkit": "CUDA 12.9"},
        ),
        "cpu": LockedPlatform("cpu", (), {}, {}),
    },
    recorded={"torch": "2.13.0+cu129", "python": "3.11.7"},
)

TEXT = """\
# Which kernels run here, pinned. Written by `vllm-ir lock`; read it in review, and write it anew instead of editing it.
# What stands under `recorded` may differ; every other difference makes `vllm-ir check` and VLLM_IR_LOCK fail.

lock-version = 1

[core]
version = "0.1.0"
provider-api = [
    "1",
]

[recorded]
python = "3.11.7"
torch = "2.13.0+cu129"

[distributions.dist-b]
version = "1!2.0rc1+cu129"
manifest = "{digest}"
editable = true
providers = [
    "b",
    "b_slow",
]

[distributions.vllm-ir]
version = "0.1.0"
manifest = "{digest}"
digest = "{digest}"
providers = [
    "native",
]

[platforms.cpu]
architectures = []

[platforms.cpu.eager]

[platforms.cpu.compiling]

[platforms."cuda:8.0,9.0"]
architectures = [
    "8.0",
    "9.0",
]

[platforms."cuda:8.0,9.0".recorded]
driver = "570.86"
toolkit = "CUDA 12.9"

[platforms."cuda:8.0,9.0".eager]
empty = []
rms_norm = [
    {{ provider = "b", layer = "a \\"file\\" named \\\\é " }},
    {{ provider = "native", layer = "built-in" }},
]

[platforms."cuda:8.0,9.0".compiling]
rms_norm = [
    {{ provider = "native", layer = "built-in" }},
]
"""


def test_it_is_made_to_be_read_in_a_diff() -> None:
    """Sorted, one thing a line, to the byte with every version of the library that writes it."""
    assert to_text(LOCK) == TEXT.format(digest=DIGEST)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    """Every value of it, names that need quotes included."""
    file = tmp_path / "a.lock"
    assert write_lock(LOCK, file)
    assert read_lock(file) == LOCK


def test_the_same_lock_is_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the order of the tables, and the file is not even touched."""
    file = tmp_path / "a.lock"
    write_lock(LOCK, file)
    os.utime(file, ns=(1, 1))
    turned = replace(LOCK, distributions=dict(sorted(LOCK.distributions.items(), reverse=True)))
    assert not write_lock(turned, file)
    assert file.stat().st_mtime_ns == 1


def test_a_file_that_is_no_lock_is_not_overwritten(tmp_path: Path) -> None:
    """A mistyped --lock costs nothing."""
    file = tmp_path / "pyproject.toml"
    file.write_text("[project]\n", encoding="utf-8")
    with pytest.raises(LockUnwritable, match="a file that is no lock is there; it has no line 'lock-version'"):
        write_lock(LOCK, file)
    assert file.read_text(encoding="utf-8") == "[project]\n"


def test_a_lock_with_marks_of_a_merge_is_written_anew(tmp_path: Path) -> None:
    """It is a lock still, though it cannot be read; an empty file is taken, too."""
    file = tmp_path / "a.lock"
    file.write_text("<<<<<<< HEAD\nlock-version = 1\n", encoding="utf-8")
    with pytest.raises(MalformedLock):
        read_lock(file)
    assert write_lock(LOCK, file)
    file.write_text("", encoding="utf-8")
    assert write_lock(LOCK, file)
    assert read_lock(file) == LOCK


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    """A lock in a store of another place is replaced there; a new one has the permissions of any new file."""
    (tmp_path / "store").mkdir()
    real, link = tmp_path / "store" / "real.lock", tmp_path / "a.lock"
    link.symlink_to(real)
    write_lock(LOCK, link)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(real.stat().st_mode) == 0o666 & ~mask
    real.chmod(0o640)
    assert write_lock(replace(LOCK, core="0.2.0"), link)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["real.lock"]


FULL = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_lock_file import LOCK
from dataclasses import replace
from vllm_ir.lock.lock_file import write_lock
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
try:
    write_lock(replace(LOCK, core="9.9"), Path("a.lock"))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_leaves_the_lock_that_was_there(tmp_path: Path) -> None:
    """The system stops the write in its middle; the old lock is whole, and nothing else is left behind."""
    write_lock(LOCK, tmp_path / "a.lock")
    before = (tmp_path / "a.lock").read_bytes()
    assert len(before) > 512
    code = FULL.format(tests=os.path.dirname(__file__))  # noqa: PTH120 - goes into source
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("LockUnwritable a.lock was not written: file too large."), done
    assert (tmp_path / "a.lock").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """As root every folder can, so it is one of the kernel's."""
    with pytest.raises(LockUnwritable, match=r"was not written: no such file or directory\."):
        write_lock(LOCK, tmp_path / "gone" / "a.lock")
    if os.getuid() == 0:
        with pytest.raises(
            LockUnwritable, match=r"'/proc' takes no new file\..* unchanged\. Name another file: --lock"
        ):
            write_lock(LOCK, type(tmp_path)("/proc/a.lock"))
        return
    tmp_path.chmod(0o555)
    with pytest.raises(LockUnwritable, match=r"permission denied\."):
        write_lock(LOCK, tmp_path / "a.lock")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe, and one that is too large, none of which takes time or memory."""
    with pytest.raises(LockUnreadable, match=r"cannot be read: no such file or directory\. Write it with"):
        read_lock(tmp_path / "gone.lock")
    with pytest.raises(LockUnreadable, match=r"cannot be read: it is a folder\. Name a file\.$"):
        read_lock(tmp_path)
    with pytest.raises(LockUnreadable, match=r"^/dev/null cannot be read: it is a device\. Name a file\.$"):
        read_lock(Path("/dev/null"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(
        LockUnreadable, match=r"cannot be read: it is a pipe\. Name another file, or remove '.*' and write"
    ):
        read_lock(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as stream:
        stream.truncate(LIMIT * 1000)
    with pytest.raises(LockUnreadable, match=f"cannot be read: it holds more than {LIMIT} bytes"):
        read_lock(tmp_path / "huge")
    with pytest.raises(LockUnreadable, match=r"cannot be read: .*embedded null"):
        read_lock(tmp_path / "a\0b")


def test_a_name_with_a_nul_is_not_written(tmp_path: Path) -> None:
    """Python calls it a ValueError."""
    with pytest.raises(LockUnwritable, match="embedded null"):
        write_lock(LOCK, tmp_path / "a\0b")


def test_parsing_needs_no_file() -> None:
    """The name is for errors."""
    assert parse_lock(to_text(LOCK).encode(), "somewhere") == LOCK


def test_what_is_in_the_way_of_a_lock_is_named(tmp_path: Path) -> None:
    """Making room would not help there."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("notes", encoding="utf-8")
    for name, reason in {"pipe": "it is a pipe", "folder": "it is a folder", "notes.txt": "that is no lock"}.items():
        with pytest.raises(LockUnwritable) as caught:
            write_lock(LOCK, tmp_path / name)
        assert reason in caught.value.reason
        removed = f" Remove {tmp_path / name} if nothing needs it, or name another file: --lock FILE."
        assert str(caught.value).endswith(
            " unchanged. Name another file: --lock FILE." if name == "folder" else removed
        )
    with pytest.raises(LockUnwritable, match=r"it is a device\. .* unchanged\. Name another file: --lock FILE\.$"):
        write_lock(LOCK, Path("/dev/full"))
    with pytest.raises(LockUnwritable, match=f"Make the folder '{tmp_path / 'none'}', or name another file"):
        write_lock(LOCK, tmp_path / "none" / "a.lock")
