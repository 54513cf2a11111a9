"""Where cubins are kept: a folder that only its owner can write, shared by processes, and folders built ahead of time.

A cubin is code, so a folder or file that others can write is never read (`trust` judges that): a private temporary
folder takes its place, with one warning in the log. Files are written whole and moved into place, so a reader sees all
of one or none.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from errno import ELOOP
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.environment import Environment
from vllm_ir.log import logger

from vllm_ir_provider_vllm_c import compiling, trust
from vllm_ir_provider_vllm_c.compiling import Cubin
from vllm_ir_provider_vllm_c.errors import CompilerMissing
from vllm_ir_provider_vllm_c.trust import ANOTHER, Distrust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir_provider_vllm_c.variants import Program

FOLDER: Final = "vllm_c"
BUILT: Final = Path(__file__).parent / "built"
"""Cubins that a wheel brings along, made by `python -m vllm_ir_provider_vllm_c build`."""

MAGIC: Final = b"vllm_c cubin 1\n"
FOR_THIS_USER: Final = 0o600
FOR_ALL: Final = 0o644


def fetch(program: Program, arch: str) -> Cubin:
    """Return a cubin: one built ahead of time, one from the cache, or one compiled now and kept.

    Args:
        program: what to compile.
        arch: such as "sm_90".

    Raises:
        CompilerMissing: it has to be compiled, and NVRTC or a header is not there.
        CannotCompile: the compiler refused.
    """
    ahead = read_built(program, arch, BUILT)
    if ahead is not None:
        return ahead
    try:
        version, headers = compiling.nvrtc_version(), compiling.headers_digest()
    except ImportError as error:
        raise CompilerMissing(program=program.name, arch=arch, missing=str(error)) from error
    name = f"{program.name}-{arch}-{compiling.key(program, arch, version, headers)[:32]}.cubin"
    file = folder() / name
    kept = read(file)
    if kept is not None:
        logger.debug("vllm_c: %s for %s from %s", program.name, arch, file)
        return kept
    with _alone(file):
        kept = read(file)  # another process may have made it meanwhile
        if kept is None:
            logger.debug("vllm_c: compiling %s for %s", program.name, arch)
            kept = compiling.compile_program(program, arch)
            write(file, kept)
    return kept


def built_file(program: Program, arch: str, where: Path) -> Path:
    """Return where an ahead-of-time cubin lies; the name holds the sources' digest, and no compiler's version."""
    return where / f"{program.name}-{arch}-{compiling.key(program, arch, (0, 0))[:32]}.cubin"


def read_built(program: Program, arch: str, where: Path) -> Cubin | None:
    """Return a cubin built ahead of time for this architecture or an earlier one of its family, or None."""
    family, newest = arch[:-1], int(arch[-1])
    for minor in range(newest, -1, -1):  # what is compiled for 8.0 runs on 8.6, too
        found = read(built_file(program, f"{family}{minor}", where), ours=False)
        if found is not None:
            return found
    return None


def unreadable(where: Path) -> Path | None:
    """Return a folder of cubins built ahead of time, or a file in it, that this user may not read; None without."""
    if where.is_dir() and not os.access(where, os.R_OK | os.X_OK):
        return where
    return next((file for file in sorted(where.glob("*.cubin")) if not os.access(file, os.R_OK)), None)


def folder() -> Path:
    """Return the folder of the cache, which exists, belongs to this user, and which nobody else can write."""
    return _folder(Environment.read().cache / FOLDER)


@cache
def _folder(wanted: Path) -> Path:
    """Return a folder if it can be trusted and written, else a private temporary one, with one warning in the log."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted.mkdir(exist_ok=True, mode=0o700)
        doubt = trust.of_folder(wanted)
        if doubt is None and not os.access(wanted, os.W_OK | os.X_OK):
            doubt = Distrust(f"{wanted} is not writable", f"Make it so (chmod 700 {wanted}), or {ANOTHER}")
    except OSError as error:
        doubt = Distrust(f"{wanted} cannot be made ({error.strerror})", "Name another folder in VLLM_IR_CACHE")
    if doubt is None:
        return wanted
    private = Path(tempfile.mkdtemp(prefix="vllm_c_"))
    atexit.register(_forget, private, os.getpid())
    # No warning of Python's: where those are errors, every call would fail, and make another folder.
    _say(f"cubins are kept in {private} for this process alone, since {doubt.problem}. {doubt.fix}.")
    return private


def _forget(private: Path, owner: int) -> None:
    """Remove a temporary folder at the end of the process that made it; one forked from that still uses it."""
    if os.getpid() == owner:
        shutil.rmtree(private, ignore_errors=True)


def write(file: Path, cubin: Cubin) -> None:
    """Keep a cubin for this user; a folder that is full or gone costs only the keeping."""
    try:
        store(file, cubin, FOR_THIS_USER)
    except OSError as error:
        _say(f"{file} is not kept: {error}")


def store(file: Path, cubin: Cubin, mode: int) -> None:
    """Write a cubin so that readers see all of it or nothing.

    Args:
        file: where.
        cubin: what.
        mode: who may read it, `FOR_THIS_USER` or `FOR_ALL`.

    Raises:
        OSError: the folder is not there, not writable, or full; nothing is left of it then.
    """
    head = json.dumps({"names": dict(cubin.names), "sha256": hashlib.sha256(cubin.code).hexdigest()}).encode()
    handle, fresh = tempfile.mkstemp(dir=file.parent, prefix=".new")
    try:
        with os.fdopen(handle, "wb") as out:
            os.fchmod(out.fileno(), mode)
            out.write(MAGIC + head + b"\n" + cubin.code)
        Path(fresh).replace(file)
    except OSError:
        with contextlib.suppress(OSError):  # half a file would keep a full disk full
            Path(fresh).unlink()
        raise


def read(file: Path, *, ours: bool = True) -> Cubin | None:
    """Return the cubin in a file, or None where there is none; why one that is there is not read is said once.

    Args:
        file: which.
        ours: whether it has to be this user's alone, no link; what an installation brought is judged by nobody.
    """
    try:
        # What is judged is what is read: the open file. One that is no file must not make its reader wait.
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if ours else 0))
        with os.fdopen(handle, "rb") as stream:
            problem = trust.of_file(os.fstat(stream.fileno())) if ours else None
            content = b"" if problem else stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem, content = "is a symbolic link" if error.errno == ELOOP else f"cannot be read ({error.strerror})", b""
    if problem is not None:
        _say(f"{file} {problem}, and is not used")
        return None
    head, _, code = content.removeprefix(MAGIC).partition(b"\n")
    try:
        facts = json.loads(head)
        if content.startswith(MAGIC) and facts["sha256"] == hashlib.sha256(code).hexdigest():
            return Cubin(code, facts["names"])
    except (ValueError, KeyError, TypeError):
        pass
    _say(f"{file} is damaged, and is not used")
    return None


@cache
def _say(sentence: str) -> None:
    """Warn of something in the log, once a process."""
    logger.warning("vllm_c: %s", sentence)


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Let one process at a time make a file; where locks do not work, several make the same one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = stack.enter_context(file.with_suffix(".lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
