"""The cache of cubins: one compiler among many processes, trusted only if nobody else can write it, made anew."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from vllm_ir_provider_vllm_c import compiling, cubins
from vllm_ir_provider_vllm_c.compiling import Cubin
from vllm_ir_provider_vllm_c.errors import CompilerMissing, UnsafeCache
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
    monkeypatch.setattr(compiling, "compile_program", made)
    monkeypatch.setattr(cubins, "BUILT", tmp_path / "built")
    monkeypatch.setenv("VLLM_IR_CACHE", str(tmp_path / "cache"))
    cubins._folder.cache_clear()
    yield made
    cubins._folder.cache_clear()


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
def test_a_damaged_file_is_made_anew(damage: bytes, compiler: Compiler, tmp_path: Path) -> None:
    """Cut short, or not ours: never loaded."""
    cubins.fetch(PROGRAM, "sm_90")
    kept(tmp_path).write_bytes(damage)
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 2


def test_a_changed_byte_is_noticed(compiler: Compiler, tmp_path: Path) -> None:
    """The digest of the code is beside it."""
    cubins.fetch(PROGRAM, "sm_90")
    content = kept(tmp_path).read_bytes()
    kept(tmp_path).write_bytes(content[:-1] + b"!")
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_not_used(mode: int, compiler: Compiler, tmp_path: Path) -> None:
    """A cubin is code: a private folder takes its place, and one warning says how to mend it."""
    shared = tmp_path / "cache" / "vllm_c"
    shared.mkdir(parents=True)
    shared.chmod(mode)
    with pytest.warns(UnsafeCache, match=r"others can write .* \(chmod 700 "):
        cubins.fetch(PROGRAM, "sm_90")
    cubins.fetch(PROGRAM, "sm_90")
    assert compiler.times == 1
    assert list(shared.iterdir()) == []


def test_a_file_that_others_can_write_is_not_read(compiler: Compiler, tmp_path: Path) -> None:
    """Whoever could write it could have."""
    cubins.fetch(PROGRAM, "sm_90")
    kept(tmp_path).chmod(0o666)
    cubins.fetch(PROGRAM, "sm_90")
    assert compiler.times == 2


def test_a_link_is_not_followed(compiler: Compiler, tmp_path: Path) -> None:
    """Neither as the folder nor as a file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "vllm_c").symlink_to(elsewhere)
    with pytest.warns(UnsafeCache, match="is a symbolic link"):
        cubins.fetch(PROGRAM, "sm_90")
    assert compiler.times == 1
    assert list(elsewhere.iterdir()) == []


def test_a_folder_that_cannot_be_made_costs_only_the_keeping(compiler: Compiler, tmp_path: Path) -> None:
    """A file stands in its place: a private folder, one warning, and kernels all the same."""
    (tmp_path / "cache").write_text("")
    with pytest.warns(UnsafeCache, match="cannot be made"):
        assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 1


def test_a_read_only_folder_costs_only_the_keeping(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private folder, one warning, and kernels all the same; root, who may write anywhere, is kept out by hand."""
    folder = tmp_path / "cache" / "vllm_c"
    folder.mkdir(parents=True, mode=0o700)
    folder.chmod(0o500)
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and may(path, mode))
    with pytest.warns(UnsafeCache, match=f"{folder} is not writable"):
        assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert cubins.fetch(PROGRAM, "sm_90") == CUBIN
    assert compiler.times == 1
    assert list(folder.iterdir()) == []


PRIVATE = """
import os, sys, warnings
from vllm_ir_provider_vllm_c import cubins
warnings.simplefilter("ignore")
made = cubins.folder()
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(made, made.is_dir())
"""


def test_a_private_folder_goes_with_its_process(tmp_path: Path) -> None:
    """A thousand jobs with a read-only home leave no thousand folders; what is forked off takes nothing along."""
    (tmp_path / "file").touch()
    variables = {**os.environ, "VLLM_IR_CACHE": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PRIVATE], env=variables, capture_output=True, text=True, check=True)
    made, there = done.stdout.split()
    assert (Path(made).parent, there) == (tmp_path, "True")
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
    cubins.write(cubins.built_file(PROGRAM, "sm_80", tmp_path / "built"), CUBIN)
    assert cubins.fetch(PROGRAM, "sm_80") == cubins.fetch(PROGRAM, "sm_86") == CUBIN
    assert compiler.times == 0

    def absent() -> None:
        """Say that there is no NVRTC."""
        msg = "NVRTC is not found"
        raise ImportError(msg)

    monkeypatch.setattr(compiling, "nvrtc_version", absent)
    with pytest.raises(CompilerMissing, match=r"build --arch sm_90"):
        cubins.fetch(PROGRAM, "sm_90")
