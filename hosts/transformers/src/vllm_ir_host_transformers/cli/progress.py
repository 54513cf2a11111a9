"""A bar on stderr while something takes long; where that is no terminal, lines about what takes minutes."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

from vllm_ir.cli.output import complain

if TYPE_CHECKING:
    from collections.abc import Iterator


class TerminalSteps:
    """Tells on stderr: a moving bar with the seconds where that is a terminal, and sentences everywhere."""

    @contextlib.contextmanager
    def step(self, what: str, *, aloud: bool = False) -> Iterator[None]:
        """Show a bar while open.

        Args:
            what: what takes long.
            aloud: it takes minutes, so that a pipe or a log gets a line when it begins and one when it has ended.
        """
        if not sys.stderr.isatty():
            if aloud:
                with self._aloud(what):
                    yield
            else:
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

    @contextlib.contextmanager
    def _aloud(self, what: str) -> Iterator[None]:
        """Print when something begins and when it has ended, or failed."""
        begin = time.perf_counter()
        complain(f"{what} ...")
        ended = "failed"
        try:
            yield
            ended = "done"
        finally:
            complain(f"{what}: {ended} after {time.perf_counter() - begin:.1f} s")
