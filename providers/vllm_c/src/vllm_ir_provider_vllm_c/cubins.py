"""Where cubins are kept: a folder that only its owner can write, shared by processes, and folders built ahead of time.

A cubin is code, so a folder or file that others can write is never read: a private temporary folder takes its place,
with one warning. Files are written whole and moved into place, so a reader sees all of one or none.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.environment import Environment
from vllm_ir.log import logger

from vllm_ir_provider_vllm_c import compiling
from vllm_ir_provider_vllm_c.compiling import Cubin
from vllm_ir_provider_vllm_c.errors import CompilerMissing, UnsafeCache

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_ir_provider_vllm_c.variants import Program

FOLDER: Final = "vllm_c"
BUILT: Final = Path(__file__).parent / "built"
"""Cubins that a wheel brings along, made by `python -m vllm_ir_provider_vllm_c build`."""

MAGIC: Final = b"vllm_c cubin 1\n"
OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


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
        version = compiling.nvrtc_version()
    except ImportError as error:
        raise CompilerMissing(program=program.name, arch=arch, missing=str(error)) from error
    file = folder() / f"{program.name}-{arch}-{compiling.key(program, arch, version)[:32]}.cubin"
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
        file = built_file(program, f"{family}{minor}", where)
        if file.is_file():
            return read(file)
    return None


def folder() -> Path:
    """Return the folder of the cache, which exists, belongs to this user, and which nobody else can write."""
    return _folder(Environment.read().cache / FOLDER)


@cache
def _folder(wanted: Path) -> Path:
    """Return a folder if it can be trusted and written, else a private temporary one, with one warning."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted.mkdir(exist_ok=True, mode=0o700)
        problem = distrust(wanted) or (None if os.access(wanted, os.W_OK | os.X_OK) else f"{wanted} is not writable")
    except OSError as error:
        problem = f"{wanted} cannot be made ({error.strerror})"
    if problem is None:
        return wanted
    private = Path(tempfile.mkdtemp(prefix="vllm_c_"))
    atexit.register(_forget, private, os.getpid())
    warnings.warn(
        UnsafeCache(
            f"vllm_c keeps its cubins in {private} for this process alone, since {problem}."
            f" Make it yours alone (chmod 700 {wanted}), or name another folder in VLLM_IR_CACHE."
        ),
        stacklevel=2,
    )
    return private


def _forget(private: Path, owner: int) -> None:
    """Remove a temporary folder at the end of the process that made it; one forked from that still uses it."""
    if os.getpid() == owner:
        shutil.rmtree(private, ignore_errors=True)


def distrust(path: Path) -> str | None:
    """Return why what a path holds may be somebody else's code, or None."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return f"{path} is a symbolic link"
    if facts.st_uid != os.geteuid():
        return f"{path} belongs to user {facts.st_uid}"
    if facts.st_mode & OTHERS_WRITE:
        return f"others can write {path}"
    return None


def write(file: Path, cubin: Cubin) -> None:
    """Write a cubin so that readers see all of it or nothing; a folder that is full or gone costs only the keeping."""
    head = json.dumps({"names": dict(cubin.names), "sha256": hashlib.sha256(cubin.code).hexdigest()}).encode()
    fresh: str | None = None
    try:
        handle, fresh = tempfile.mkstemp(dir=file.parent, prefix=".new")  # 0600
        with os.fdopen(handle, "wb") as out:
            out.write(MAGIC + head + b"\n" + cubin.code)
        Path(fresh).replace(file)
    except OSError as error:
        logger.warning("vllm_c: %s is not kept: %s", file, error)
        if fresh is not None:
            with contextlib.suppress(OSError):  # half a file would keep a full disk full
                Path(fresh).unlink()


def read(file: Path) -> Cubin | None:
    """Return the cubin in a file; None where there is none, where it is damaged, or where others can write it."""
    try:
        if file.parent != BUILT and distrust(file) is not None:
            return None
        content = file.read_bytes()
    except OSError:
        return None
    head, _, code = content.removeprefix(MAGIC).partition(b"\n")
    try:
        facts = json.loads(head)
        if content.startswith(MAGIC) and facts["sha256"] == hashlib.sha256(code).hexdigest():
            return Cubin(code, facts["names"])
    except (ValueError, KeyError, TypeError):
        pass
    logger.warning("vllm_c: %s is damaged and is made anew", file)
    return None


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Let one process at a time make a file; where locks do not work, several make the same one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock = stack.enter_context(file.with_suffix(".lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
