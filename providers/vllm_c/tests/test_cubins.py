"""The cache of cubins: one compiler among many processes, trusted only if nobody else can write it, made anew."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vllm_ir_provider_vllm_c import compiling, cubins, trust
from vllm_ir_provider_vllm_c.compiling import Cubin
from vllm_ir_provider_vllm_c.errors import CompilerMissing
from vllm_ir_provider_vllm_c.variants import Program

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAM = Program("gate", "float32")
CUBIN = Cubin(b"\x7fELF" + bytes(range(256)), {"gate<float, true, SILU>": "_Z4gate"})


class Compiler:
    """Stands for NVRTC, and leaves a file for each time that it compiles."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks
        marks.mkdir()

    def __call__(self, program: Program, arch: str) -> Cubin:
        """Return a cubin."""
        del program, arch
        (self.marks / f"{os.getpid()}-{len(list(self.marks.iterdir()))}").touch()
        return CUBIN

    @property
    def times(self) -> int:
        """How often it has compiled."""
        return len(list(self.marks.iterdir()))


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Put a compiler that counts in NVRTC's place, and a cache below the test's folder."""
    made = Compiler(tmp_path / "marks")
    monkeypatch.setattr(compiling, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(compiling, "headers_digest", lambda: "13.0")
    monkeypatch.setattr(compiling, "compile_program", made)
    monkeypatch.setattr(cubins, "BUILT", tmp_path / "built")
    monkeypatch.setenv("VLLM_IR_CACHE", str(tmp_path / "cache"))
    cubins._folder.cache_clear()
    cubins._say.cache_clear()
    yield made
    cubins._folder.cache_clear()


def warned(caplog: pytest.LogCaptureFixture) -> str:
    """Return the one warning of the log so far, and forget it."""
    (message,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    caplog.clear()
    return message


def kept(tmp_path: Path) -> Path:
    """Return the one file of the cache."""
    (file,) = (tmp_path / "cache" / "vllm_c").glob("*.cubin")
    return file


def test_a_program_is_compiled_once_and_read_back_whole(compiler: Compiler, tmp_path: Path) -> None:
    """In the folder that VLLM_IR_CACHE names, for this user alone."""
    assert cubins.fetch(PROGRAM, "sm_90") == cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 1
    assert stat.S_IMODE(kept(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(kept(tmp_path).parent.stat().st_mode) == 0o700
    cubins.fetch(PROGRAM, "sm_80")
    assert compiler.times == 2


def fetch(_: int) -> bytes:
    """Fetch in a process of its own."""
    return cubins.fetch(PROGRAM, "sm_90").code


def test_processes_that_start_together_compile_once(compiler: Compiler) -> None:
    """Eight workers of one engine ask at the same time."""
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert set(pool.map(fetch, range(16), chunksize=1)) == {CUBIN.code}
    assert compiler.times == 1


@pytest.mark.parametrize("damage", [b"", b"vllm_c cubin 1\n{}\n", b"something else", b"vllm_c cubin 1\n[]\nxx"])
def test_a_damaged_file_is_made_anew(
    damage: bytes, compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut short, or not ours: never loaded, and said once."""
    cubins.fetch(PROGRAM, "sm_90")
    kept(tmp_path).write_bytes(damage)
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 2
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"vllm_c: {kept(tmp_path)} is damaged, and is not used"
    ]


def test_a_changed_byte_is_noticed(compiler: Compiler, tmp_path: Path) -> None:
    """The digest of the code is beside it."""
    cubins.fetch(PROGRAM, "sm_90")
    content = kept(tmp_path).read_bytes()
    kept(tmp_path).write_bytes(content[:-1] + b"!")
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_not_used(
    mode: int, compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cubin is code: a private folder takes its place, and one warning says how to mend it."""
    shared = tmp_path / "cache" / "vllm_c"
    shared.mkdir(parents=True)
    shared.chmod(mode)
    for _ in range(2):
        cubins.fetch(PROGRAM, "sm_90")
    assert re.search(r"others can write .* \(chmod 700 ", warned(caplog))
    assert compiler.times == 1
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o707])
def test_a_folder_below_one_that_others_can_write_is_not_used(
    mode: int, compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They could rename it away and put their own there; the warning names the folder above and how to close it."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    cubins.fetch(PROGRAM, "sm_90")
    assert re.search(rf"others can write {tmp_path}/cache, above it, .* \(chmod go-w {tmp_path}/", warned(caplog))
    assert compiler.times == 1
    assert list((tmp_path / "cache" / "vllm_c").iterdir()) == []


def test_a_folder_behind_a_link_is_judged_by_the_way_there(
    compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A home that is a link is used; one that leads through a folder that others can write is not."""
    (tmp_path / "open" / "home").mkdir(parents=True)
    (tmp_path / "cache").symlink_to("open/home")
    cubins.fetch(PROGRAM, "sm_90")
    assert compiler.times == 1
    assert len(list((tmp_path / "open" / "home" / "vllm_c").glob("*.cubin"))) == 1
    (tmp_path / "open").chmod(0o777)
    cubins._folder.cache_clear()
    cubins.fetch(PROGRAM, "sm_90")
    assert f"others can write {tmp_path}/open, above it" in warned(caplog)
    (tmp_path / "open").chmod(0o1777)
    cubins._folder.cache_clear()
    assert cubins.folder() == tmp_path / "cache" / "vllm_c", "in a sticky folder only owners rename"


def facts(mode: int, user: int, group: int) -> os.stat_result:
    """Return what a file system says of a folder or link."""
    return os.stat_result((mode, 0, 0, 1, user, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "user", "group", "problem"),
    [
        (stat.S_IFDIR | 0o755, 0, 0, None),
        (stat.S_IFDIR | 0o755, 1000, 1000, None),
        (stat.S_IFDIR | 0o775, 1000, 1000, None),  # a group with its owner's number is that owner's own
        (stat.S_IFDIR | 0o775, 1000, 50, "others can write /a, above it"),
        (stat.S_IFDIR | 0o755, 1001, 1001, "/a, above it, belongs to user 1001"),
        (stat.S_IFLNK | 0o777, 1000, 1000, None),
        (stat.S_IFLNK | 0o777, 1001, 1001, "/a, above it, belongs to user 1001"),
        (stat.S_IFDIR | 0o1777, 0, 0, None),
    ],
)
def test_folders_above_are_judged_by_owner_and_mode(
    mode: int, user: int, group: int, problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For user 1000: root's and one's own are trusted, links by their owner, sticky folders by what is in them."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(Path, "lstat", lambda _: facts(mode, user, group))
    doubt = trust._of_folder_above(Path("/a"))
    assert (doubt and doubt.problem[: len(problem or "")]) == problem


def test_a_folder_of_another_user_is_none_to_chmod(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What helps is another name."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    cubins.folder()
    message = warned(caplog)
    assert re.search(r"belongs to user \d+\. Name a folder below one of your own", message)
    assert "chmod" not in message
    assert compiler.times == 0


@pytest.mark.parametrize("what", ["writable", "link", "pipe", "unreadable"])
def test_a_file_that_may_be_somebody_elses_is_not_read(
    what: str,
    compiler: Compiler,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever could write it could have: it is made anew, and why is said once."""
    cubins.fetch(PROGRAM, "sm_90")
    file = kept(tmp_path)
    if what == "writable":
        file.chmod(0o666)
    elif what == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif what == "pipe":
        file.unlink()
        os.mkfifo(file, 0o600)
    else:
        may = os.open

        def closed(path: Path, flags: int, *rest: int) -> int:
            """Refuse to open the one file, as the system does to all but root."""
            if path == file:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return may(path, flags, *rest)

        monkeypatch.setattr(os, "open", closed)
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 2
    words = {
        "writable": "can be written by others",
        "link": "is a symbolic link",
        "pipe": "is no regular file",
        "unreadable": "cannot be read (Permission denied)",
    }
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"vllm_c: {file} {words[what]}, and is not used"
    ]


def test_what_is_judged_is_what_is_read(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes another's place between the two is not read: the judgement is of the open file."""
    cubins.fetch(PROGRAM, "sm_90")
    file, judge = kept(tmp_path), trust.of_file

    def swap(open_file: os.stat_result) -> str | None:
        """Put another file there, once the first one is open."""
        (tmp_path / "other").write_bytes(b"somebody else's")
        (tmp_path / "other").replace(file)
        return judge(open_file)

    monkeypatch.setattr(trust, "of_file", swap)
    assert cubins.read(file) == CUBIN
    assert compiler.times == 1


def test_a_link_is_not_followed(compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither as the folder nor as a file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "vllm_c").symlink_to(elsewhere)
    cubins.fetch(PROGRAM, "sm_90")
    assert "is a symbolic link" in warned(caplog)
    assert compiler.times == 1
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_only_the_keeping(
    compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands in its place: a private folder, one warning, and kernels all the same."""
    (tmp_path / "cache").write_text("")
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert "cannot be made" in warned(caplog)
    assert compiler.times == 1


def test_a_read_only_folder_costs_only_the_keeping(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A private folder, one warning, and kernels all the same; root, who may write anywhere, is kept out by hand."""
    folder = tmp_path / "cache" / "vllm_c"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o500)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and may(path, mode))
    for _ in range(2):
        assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert f"{folder} is not writable" in warned(caplog)
    assert compiler.times == 1
    assert list(folder.iterdir()) == []


PRIVATE = """
import os, sys, warnings
from vllm_ir_provider_vllm_c import cubins
warnings.simplefilter("error")
made = cubins.folder()
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(made, made.is_dir(), made == cubins.folder())
"""


def test_a_private_folder_goes_with_its_process(tmp_path: Path) -> None:
    """A thousand jobs with a read-only home leave no thousand folders; what is forked off takes nothing along.

    Where Python's warnings are errors there is one, too, and no call fails of it; stderr tells it without any set-up.
    """
    (tmp_path / "file").touch()
    variables = {**os.environ, "VLLM_IR_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PRIVATE], env=variables, capture_output=True, text=True, check=True)
    made, there, same = done.stdout.split()
    assert (Path(made).parent, there, same) == (tmp_path, "True", "True")
    assert done.stderr.count(f"vllm_c: cubins are kept in {made} for this process alone, since ") == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]


def fetch_on_a_full_disk(folder: str) -> tuple[bytes, list[str]]:
    """Fetch in a process whose files may hold 64 bytes, and return what lies in the folder then."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    code = cubins.fetch(PROGRAM, "sm_90").code
    return code, sorted(each.suffix for each in Path(folder).iterdir())


def test_a_full_disk_costs_only_the_keeping(compiler: Compiler, tmp_path: Path) -> None:
    """The kernel is there, half a file is not; and once there is room, the next process keeps it."""
    folder = tmp_path / "cache" / "vllm_c"
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(fetch_on_a_full_disk, (str(folder),)) == (CUBIN.code, [".lock"])
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 2
    assert kept(tmp_path).is_file()


def test_what_was_built_ahead_of_time_needs_no_compiler(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its own architecture and for later ones of its family; for others the compiler is asked."""
    (tmp_path / "built").mkdir()
    cubins.store(cubins.built_file(PROGRAM, "sm_80", tmp_path / "built"), CUBIN, cubins.FOR_ALL)
    assert cubins.fetch(PROGRAM, "sm_80") == cubins.fetch(PROGRAM, "sm_86") == CUBIN
    assert compiler.times == 0

    def absent() -> None:
        """Say that there is no NVRTC."""
        msg = "NVRTC is not found"
        raise ImportError(msg)

    monkeypatch.setattr(compiling, "nvrtc_version", absent)
    with pytest.raises(CompilerMissing, match=r"build --arch sm_90"):
        cubins.fetch(PROGRAM, "sm_90")


def test_what_was_built_ahead_of_time_and_cannot_be_read_is_said(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once; a link is none to be refused there, since installers make them."""
    (tmp_path / "built").mkdir()
    file, may = cubins.built_file(PROGRAM, "sm_80", tmp_path / "built"), os.open
    cubins.store(tmp_path / "store", CUBIN, cubins.FOR_ALL)
    file.symlink_to(tmp_path / "store")
    assert cubins.fetch(PROGRAM, "sm_80") == CUBIN
    assert compiler.times == 0

    def closed(path: Path, flags: int, *rest: int) -> int:
        """Refuse to open the one file, as the system does to all but root."""
        if path == file:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return may(path, flags, *rest)

    monkeypatch.setattr(os, "open", closed)
    for _ in range(2):
        assert cubins.fetch(PROGRAM, "sm_80") == CUBIN
    assert compiler.times == 1
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        f"vllm_c: {file} cannot be read (Permission denied), and is not used"
    ]
