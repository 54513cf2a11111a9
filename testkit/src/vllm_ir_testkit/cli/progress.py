"""A bar on stderr while something takes long, for a terminal alone."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Tell = Callable[[int, int, str], None]


@contextlib.contextmanager
def bar(title: str) -> Iterator[Tell | None]:
    """Yield what to call before each step with steps done, steps in all and what comes; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", style="dim"),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task(title, total=None, step="starting")

        def tell(done: int, total: int, step: str) -> None:
            """Move the bar."""
            progress.update(task, completed=done, total=total, step=step)

        yield tell
