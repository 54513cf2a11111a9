"""A bar on stderr while something takes long, for a terminal alone."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from vllm_ir.cli.output import complain

if TYPE_CHECKING:
    from collections.abc import Iterator


class TerminalSteps:
    """Tells on stderr: a moving bar with the seconds where that is a terminal, and sentences everywhere."""

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show a bar while open."""
        if not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        columns = (BarColumn(bar_width=16), TextColumn("{task.description}, {task.elapsed:.0f} s"))
        with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
            progress.add_task(what, total=None)
            yield

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        complain(sentence)
