"""How answers look: JSON for programs, tables and paragraphs of at most a terminal's width for people.

What is in them is the verbs' business. Colours are for a terminal alone, and never under NO_COLOR. rich draws; it is
imported when something is drawn, so that `--json` does not wait for it.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import UnwritableOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

VERSION: Final = "1"
"""Version of every JSON object; a key is never removed or given another meaning under it."""

PIPE_WIDTH: Final = 1000
"""Columns where nobody looks: a row stays one line, so that grep and cut see it whole."""

GOOD: Final = "green"
BAD: Final = "red"
DOUBTFUL: Final = "yellow"
DIM: Final = "dim"
BOLD: Final = "bold"
PLAIN: Final = ""
"""Styles, by rich's names."""

Cell = tuple[str, str]
"""A text and its style."""

_GAP: Final = 2
"""Blanks between columns."""

_ENOUGH: Final = (16, 32)
"""Columns that a folding cell needs at least, and the longest word that it must hold whole."""


def settle_streams() -> None:
    """Make stdout take any text, and stderr be there; called once a process, before anything is said.

    Raises:
        UnwritableOutput: stdout is closed.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open as long as the process is
    if sys.stdout is None:
        raise UnwritableOutput(reason="it is closed")
    if isinstance(sys.stdout, TextIOWrapper):
        # A locale that lacks a character, or bytes in a variable that are no text, must not end an answer.
        sys.stdout.reconfigure(errors="backslashreplace")


def is_lost(error: OSError) -> bool:
    """Tell whether an error is that stdout takes nothing more; one of a file that a verb writes is not."""
    if error.filename is not None:
        return False
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def discard_rest() -> None:
    """Send what is still to be written to stdout nowhere, so that Python does not complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def emit_json(content: Mapping[str, object]) -> None:
    """Print an object with its version, keys in the order given."""
    whole = {"version": VERSION, **content}
    text = json.dumps(whole, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(whole, indent=2)
    print(text)


def complain(text: str) -> None:
    """Print a sentence to stderr, where it does not mix with data."""
    print(f"vllm-ir: {text}", file=sys.stderr)


def terminal_width() -> int:
    """Return the columns there are: COLUMNS where it is set, else the terminal's, else more than anything needs."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (OSError, ValueError):
        return PIPE_WIDTH


def make_console() -> Console:
    """Return a console on stdout; plain where nobody looks, or where NO_COLOR or the terminal asks for it."""
    from rich.console import Console

    class PipeConsole(Console):
        """A console that lets the entrance say what a reader who has gone means."""

        def on_broken_pipe(self) -> None:
            """Raise, where rich would end the process with the code of a finding."""
            raise BrokenPipeError

    # rich leaves bold and dim in place under NO_COLOR; people who set it want plain text.
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return PipeConsole(
        width=terminal_width(), color_system=None if plain else "standard", highlight=False, markup=False
    )


def print_text(text: str, style: str = PLAIN, *, indent: int = 0) -> None:
    """Print a paragraph, folded at the terminal's width; lines after the first are set in by `indent`."""
    console = make_console()
    for line in _fold(text, console.width, indent):
        console.print(line, style=style, soft_wrap=True)


def print_note(name: str, text: str, style: str = BOLD, text_style: str = PLAIN) -> None:
    """Print `name: text`, or the text alone in its style, as a paragraph set in by two, its further lines by four."""
    from rich.text import Text

    if not name:
        print_text(f"  {text}", style, indent=4)
        return
    console = make_console()
    first, *others = _fold(f"  {name}: {text}", console.width, 4)
    rest = first.removeprefix(f"  {name}:")
    console.print(Text.assemble("  ", (name, style), ":", (rest, text_style)), soft_wrap=True)
    for line in others:
        console.print(line, style=text_style, soft_wrap=True)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print one fact a line, names in a column; a fact without a value is left out."""
    print_rows([((name, BOLD), (value, PLAIN)) for name, value in facts.items() if value])


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table without lines, a row of headings above; the last column folds where a line is too long.

    Where the other columns leave it no room, every row is a paragraph with a line for each heading.
    """
    print_rows([tuple((heading, DIM) for heading in headings), *rows], headed=True)


def print_rows(rows: Sequence[Sequence[Cell]], *, headed: bool = False) -> None:
    """Print rows in columns, or each as a paragraph where they do not fit; the last column folds.

    Args:
        rows: their cells, as many in each.
        headed: the first row has the headings.
    """
    if not rows:
        return
    if not _fit(rows):
        headings = [text for text, _ in rows[0]] if headed else [""] * len(rows[0])
        for row in rows[headed:]:
            _print_stacked(headings, row)
        return
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, _GAP), pad_edge=False)
    for _ in rows[0][:-1]:
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(text, style) for text, style in row))
    console = make_console()
    for line in console.render_lines(table, pad=False):
        # rich fills cells with blanks to their column's end, which grep and diff would show.
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
        console.print(Text.assemble(*((each.text, each.style or PLAIN) for each in line)), soft_wrap=True)


def _fit(rows: Sequence[Sequence[Cell]]) -> bool:
    """Tell whether rows fit in columns: every cell but the last whole, and the last with room to fold in."""
    from rich.cells import cell_len

    *whole, last = [[text for text, _ in column] for column in zip(*rows, strict=True)]
    taken = sum(max(map(cell_len, texts)) + _GAP for texts in whole)
    least, longest = _ENOUGH
    word = max((cell_len(word) for text in last for word in text.split()), default=0)
    needed = min(max(map(cell_len, last)), max(least, min(word, longest)))
    return taken + needed <= terminal_width()


def _print_stacked(headings: Sequence[str], row: Sequence[Cell]) -> None:
    """Print a row as a paragraph: its name, with what stands before it without a heading, then a line for each cell."""
    named = next((place for place, heading in enumerate(headings) if heading), 0)
    print_text(" ".join(text for text, _ in row[: named + 1]), row[named][1], indent=4)
    for heading, (text, style) in list(zip(headings, row, strict=True))[named + 1 :]:
        if text:
            print_note(heading, text, DIM if heading else style, style)


def print_paragraphs(text: str) -> None:
    """Print lines that fold at the terminal's width, further ones set in by four more than the first."""
    for line in text.splitlines():
        print_text(line, indent=len(line) - len(line.lstrip()) + 4)


def print_verbatim(text: str) -> None:
    """Print lines as they are, such as a traceback."""
    print(text.rstrip())


def _fold(text: str, width: int, indent: int) -> list[str]:
    """Return the lines of a text that may be too long; there is always one.

    rich folds, too, but sets no further line in.
    """
    return textwrap.wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    ) or [""]
