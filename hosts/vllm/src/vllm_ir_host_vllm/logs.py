"""What is said about a start, and where: in vLLM's log, as soon as there is one.

vLLM gives handlers to its own logger alone, and in the process that the user starts it does so only after plugins
have been loaded. What is said before that is kept, and said when vLLM has a configuration to show us.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST: Final = "vllm"


class Announcement:
    """One line, said once a process.

    Args:
        line: what is to be said.
    """

    def __init__(self, line: str) -> None:
        self.line = line
        self.said = False

    def make(self, *, last: bool = False) -> None:
        """Say the line where vLLM says its own, unless that has happened.

        Args:
            last: whether to say it although vLLM has no log, since there will be none.
        """
        if self.said or not (borrow() or last):
            return
        self.said = True
        logger.info("%s", self.line)


@contextlib.contextmanager
def without_summary() -> Iterator[None]:
    """Keep vllm-ir from saying by itself what it loaded: vLLM's log has no names of loggers, and our line says it."""

    def keep(record: logging.LogRecord) -> bool:
        """Return whether a record is none of its summary, which alone has this level."""
        return record.levelno != logging.INFO

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def borrow() -> bool:
    """Give the logger of vllm-ir the handlers and the level of vLLM's, and return whether anybody hears it now.

    One that somebody has configured stays as it is.
    """
    theirs = logging.getLogger(HOST)
    if theirs.handlers and not logger.handlers:
        for handler in theirs.handlers:
            logger.addHandler(handler)
        logger.propagate = theirs.propagate
        if logger.level == logging.NOTSET:
            logger.setLevel(theirs.level)
    return bool(logger.handlers)
