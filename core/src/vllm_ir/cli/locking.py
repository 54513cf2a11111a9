"""What verbs about locks share: which file is meant, and this machine looked at, with a bar where that takes long."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.cli import facts
from vllm_ir.lock.document import FILE
from vllm_ir.lock.files import Depth
from vllm_ir.lock.installed import Inspector
from vllm_ir.lock.taking import take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vllm_ir.lock.taking import Taken
    from vllm_ir.plugins.static import Survey

LONG: Final = 10 << 20
"""Bytes from which on reading them is shown on a terminal."""


def asked_file(named: str | None) -> str:
    """Return the lock that is meant: one that is named, else that of VLLM_IR_LOCK, else that of the working folder."""
    return facts.preferences().environment.lock or FILE if named is None else named


def read_name(text: str) -> str:
    """Return the name of a lock as it was typed.

    Raises:
        ArgumentTypeError: it is empty, which would mean another file than the one that was meant.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no file; leave --lock out where the default is meant")
    return text


def is_absent(named: str | None) -> bool:
    """Tell whether nobody named a lock and the working folder has none, so that there is nothing to do."""
    return asked_file(named) == FILE and not os.path.lexists(Path(FILE))


def inspect(platforms: Sequence[str] | None, depth: Depth) -> Taken:
    """Return what this machine is.

    Args:
        platforms: the platforms to judge for; None for this machine.
        depth: how closely to look at files.

    Raises:
        ConfigurationError: a platform has no such name, or a variable or a file cannot be read.
    """
    names: list[str | None] = [*platforms] if platforms else [None]
    surveys = [facts.survey_here(name, quiet=place > 0, locked=False) for place, name in enumerate(names)]
    inspector = Inspector(depth)
    with _bar(inspector, surveys[0]):
        return take(surveys, facts.preferences(), inspector)


@contextlib.contextmanager
def _bar(inspector: Inspector, found: Survey) -> Iterator[None]:
    """Show on a terminal how far reading has come, where there is much to read."""
    if inspector.depth is not Depth.BYTES or not sys.stderr.isatty():
        yield
        return
    size = sum(inspector.size(record) for record in found.distributions if record.failure is None)
    if size <= LONG:
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("reading files"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=size)
        inspector.advance = lambda count: progress.advance(task, count)
        yield
