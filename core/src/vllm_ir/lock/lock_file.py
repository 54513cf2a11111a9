"""A lock as a file: the same lock is always the same bytes, and a file is whole or as it was before."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import LockUnreadable, LockUnwritable
from vllm_ir.lock.document import VERSION
from vllm_ir.lock.reading import parse_lock
from vllm_ir.plugins.bounded_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir.lock.document import Lock, LockedDistribution, LockedPlatform, Orders

LIMIT: Final = 4 << 20
"""Bytes that a lock may hold; one of a hundred distributions holds some 50,000."""

_HEADER: Final = """\
# Which kernels run here, pinned. Written by `vllm-ir lock`; read it in review, and write it anew instead of editing it.
# What stands under `recorded` may differ; every other difference makes `vllm-ir check` and VLLM_IR_LOCK fail.

"""
_MARK: Final = "lock-version"
_READABLE: Final = "Make it one that this user can read, or name another file."
_REMOVE: Final = "Remove {!s} if nothing needs it"
_KINDS: Final[Mapping[str, Callable[[int], bool]]] = {
    "a folder": stat.S_ISDIR,
    "a pipe": stat.S_ISFIFO,
    "a socket": stat.S_ISSOCK,
    "a device": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
}
"""What is no plain file, in words, and how its mode tells."""
_KEPT: Final = ("it is a folder", "it is a device")
"""What nobody is told to remove."""


def read_lock(file: Path) -> Lock:
    """Return what a lock file says.

    Raises:
        LockUnreadable: it is missing, too large, or no plain file.
        MalformedLock: its content is not a lock's.
    """
    try:
        content = read_bounded(str(file), LIMIT)
    except FileNotFoundError as error:
        raise LockUnreadable(file=str(file), reason=reason_of(error)) from error
    except (OSError, ValueError) as error:
        kind = _kind(str(file))
        fix = _READABLE if kind is None else _way_out(file, kind)
        raise LockUnreadable(file=str(file), reason=kind or reason_of(error), fix=fix) from error
    return parse_lock(content, str(file))


def write_lock(lock: Lock, file: Path) -> bool:
    """Write a lock file whole, or leave what is there; return whether its bytes changed.

    Raises:
        LockUnwritable: it cannot be written, or a file that is no lock is in its place.
    """
    content = to_text(lock).encode()
    target = file
    try:
        target = Path(os.path.realpath(file))  # a link stays one
        before = _present(target)
        if before == content:
            return False
        _replace(target, content)
    except FileExistsError as error:
        fix = None if _kind(str(target)) in _KEPT else _REMOVE.format(target)
        raise LockUnwritable(file=str(file), reason=reason_of(error), fix=fix) from error
    except FileNotFoundError as error:
        # /proc and its like are there and know no new names, which the system tells in the same words.
        there = target.parent.is_dir()
        reason = f"the folder {str(target.parent)!r} takes no new file" if there else reason_of(error)
        fix = None if there else f"Make the folder {str(target.parent)!r}"
        raise LockUnwritable(file=str(file), reason=reason, fix=fix) from error
    except (OSError, ValueError) as error:
        raise LockUnwritable(file=str(file), reason=reason_of(error)) from error
    return True


def _kind(path: str) -> str | None:
    """Return what is in the place of a file and can never be one, in words; None where nothing of that kind is."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path may hold what no path can
    except (OSError, ValueError):
        return None
    return next((f"it is {words}" for words, test in _KINDS.items() if test(mode)), None)


def _way_out(file: Path, kind: str) -> str:
    """Return what to do about what is no file; a folder or a device holds more than the one who named it may know."""
    if kind in _KEPT:
        return "Name a file."
    write = f"`vllm-ir lock --lock {shlex.quote(str(file))}`"
    return f"Name another file, or remove {str(file)!r} and write it with {write}."


def reason_of(error: Exception) -> str:
    """Return what an operating system's error says, without the path that the sentence has already."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text[:1].lower() + text[1:]


def to_text(lock: Lock) -> str:
    """Return a lock as TOML, every table sorted."""
    import tomli_w

    content = {
        _MARK: VERSION,
        "core": {"version": lock.core, "provider-api": list(lock.provider_api)},
        **_recorded(lock.recorded),
        "distributions": {name: _distribution(each) for name, each in sorted(lock.distributions.items())},
        "platforms": {key: _platform(each) for key, each in sorted(lock.platforms.items())},
    }
    return _HEADER + tomli_w.dumps(content)


def _recorded(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of facts that may differ; none where there are none."""
    return {"recorded": dict(sorted(facts.items()))} if facts else {}


def _distribution(locked: LockedDistribution) -> dict[str, Any]:
    """Return the table of one distribution."""
    kept = {"editable": True} if locked.digest is None else {"digest": locked.digest}
    providers = sorted(locked.providers)
    return {"version": locked.version, "manifest": locked.manifest, **kept, "providers": providers}


def _platform(locked: LockedPlatform) -> dict[str, Any]:
    """Return the table of one platform."""
    return {
        "architectures": list(locked.architectures),
        **_recorded(locked.recorded),
        "eager": _orders(locked.eager),
        "compiling": _orders(locked.compiling),
    }


def _orders(orders: Orders) -> dict[str, list[dict[str, str]]]:
    """Return the table of the orders of one mode."""
    return {
        op: [{"provider": place.provider, "layer": place.layer} for place in places]
        for op, places in sorted(orders.items())
    }


def _present(target: Path) -> bytes | None:
    """Return the bytes of the lock that is in the place of one to be written; None where nothing is.

    Raises:
        FileExistsError: what is there is no lock, so it is not ours to replace.
        OSError: it cannot be read.
    """
    kind = _kind(str(target))
    if kind is not None:
        raise FileExistsError(errno.EEXIST, f"what is there is no file: {kind}")
    try:
        content = read_bounded(str(target), LIMIT)
    except FileNotFoundError:
        return None
    if content.strip() and _MARK.encode() not in content:
        raise FileExistsError(errno.EEXIST, f"a file that is no lock is there; it has no line {_MARK!r}")
    return content


def _replace(target: Path, content: bytes) -> None:
    """Put a file in place of another at once, so that no reader and no crash sees half of it."""
    import tempfile  # takes longer to import than a lock to read

    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(_mode(target))
        Path(name).replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _mode(target: Path) -> int:
    """Return the permissions of a file that is replaced, or those that any new file gets."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
