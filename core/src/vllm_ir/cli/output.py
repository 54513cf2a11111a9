"""How answers look: JSON for programs, tables and paragraphs of at most a terminal's width for people.

What is in them is the verbs' business. Colours are for a terminal alone, and never under NO_COLOR.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION: Final = "1"
"""Version of every JSON object; a key is never removed or given another meaning under it."""

PIPE_WIDTH: Final = 1000
"""Columns where nobody looks: a row stays one line, so that grep and cut see it whole."""

GOOD: Final = "32"
BAD: Final = "31"
DOUBTFUL: Final = "33"
DIM: Final = "2"
BOLD: Final = "1"
PLAIN: Final = ""
"""Styles, as terminals number them."""

GAP: Final = 2
_NARROWEST: Final = 16

Cell = tuple[str, str]
"""A text and its style."""


def emit_json(content: Mapping[str, object]) -> None:
    """Print an object with its version, keys in the order given."""
    print(json.dumps({"version": VERSION, **content}, indent=2, ensure_ascii=False))


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


def styled(text: str, style: str) -> str:
    """Return a text in a style, where stdout shows styles."""
    plain = not style or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{style}m{text}\x1b[0m"


def columns_of(text: str) -> int:
    """Return how many columns a text takes: two for a wide character, none for one that joins the one before."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def print_text(text: str, style: str = PLAIN, *, indent: int = 0) -> None:
    """Print a paragraph, folded at the terminal's width; lines after the first are set in by `indent`."""
    for line in _fold(text, terminal_width(), indent):
        print(styled(line, style))


def print_note(name: str, text: str, style: str = BOLD) -> None:
    """Print `name: text`, or the text alone in its style, as a paragraph set in by two, its further lines by four."""
    if not name:
        print_text(f"  {text}", style, indent=4)
        return
    first, *others = _fold(f"  {name}: {text}", terminal_width(), 4)
    print(first.replace(name, styled(name, style), 1), *others, sep="\n")


def print_facts(facts: Mapping[str, str]) -> None:
    """Print one fact a line, names in a column; a fact without a value is left out."""
    print_rows([((name, BOLD), (value, PLAIN)) for name, value in facts.items() if value])


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table without lines, a row of headings above; the last column folds where a line is too long."""
    print_rows([tuple((heading, DIM) for heading in headings), *rows])


def print_rows(rows: Sequence[Sequence[Cell]]) -> None:
    """Print rows in columns; the last column folds where a line is too long."""
    if not rows:
        return
    widths = [max(columns_of(text) for text, _ in column) for column in zip(*rows, strict=True)]
    start = sum(widths[:-1]) + GAP * (len(widths) - 1)
    room = max(terminal_width() - start, _NARROWEST)
    for row in rows:
        *cells, (text, style) = row
        head = "".join(
            styled(cell, look) + " " * (width - columns_of(cell) + GAP)
            for (cell, look), width in zip(cells, widths, strict=False)
        )
        first, *others = _fold(text, room, 0)
        print((head + styled(first, style)).rstrip())
        for line in others:
            print(" " * start + styled(line, style))


def print_paragraphs(text: str) -> None:
    """Print lines that fold at the terminal's width, further ones set in by four more than the first."""
    for line in text.splitlines():
        print_text(line, indent=len(line) - len(line.lstrip()) + 4)


def print_verbatim(text: str) -> None:
    """Print lines as they are, such as a traceback."""
    print(text.rstrip())


def _fold(text: str, width: int, indent: int) -> list[str]:
    """Return the lines of a text that may be too long; there is always one."""
    if columns_of(text) <= width:
        return [text]
    return textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
