"""Reading a file that somebody else wrote: a plain file of at most so many bytes, or an error that says which not."""

from __future__ import annotations

import errno
import os
import stat

_PLAIN = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def open_plain(path: str) -> int:
    """Return a descriptor of a plain file; a pipe or a device, which would block or never end, is not opened.

    Raises:
        OSError: it cannot be opened, or is no plain file.
    """
    descriptor = os.open(path, _PLAIN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", path)
    return descriptor


def read_bounded(path: str, limit: int) -> bytes:
    """Return the bytes of a plain file.

    Args:
        path: the file.
        limit: how many bytes it may hold.

    Raises:
        OSError: it cannot be read, is no plain file, or holds more.
    """
    with os.fdopen(open_plain(path), "rb") as stream:
        return check_size(stream.read(limit + 1), limit, path)


def check_size(content: bytes, limit: int, path: str) -> bytes:
    """Return bytes that are no more than a limit.

    Raises:
        OSError: they are more.
    """
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it holds more than {limit} bytes", path)
    return content
