"""The one logger of vllm-ir; hosts configure it like any other, and VLLM_IR_LOG does where there is no host."""

from __future__ import annotations

import logging
from typing import Final

logger: Final = logging.getLogger("vllm_ir")


def configure(level: str | None) -> None:
    """Set the level that a variable asked for, and write to stderr if no handler would write at all.

    Args:
        level: a name of the logging module in capitals; None changes nothing.
    """
    if level is None:
        return
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
