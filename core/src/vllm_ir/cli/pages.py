"""Reports of several sections: laid out for whoever sits before a terminal, Markdown for whoever pastes it.

What is in a section is left to the verb.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vllm_ir.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_INDENT: Final = 4
"""Blanks before a further line of a paragraph."""

_SPECIAL: Final = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|[\\|<*]|(?<![A-Za-z0-9])_(?=_)|(?<=_)_"
)
"""Code between backticks, which Markdown takes as it is, or what it would take for its own."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report; without any content it is left out.

    Attributes:
        title: what it is about.
        headings: of the table's columns.
        rows: of the table.
        facts: names and values; one without a value is left out.
        paragraphs: sentences.
        verbatim: lines that stay as they are, such as a traceback.
    """

    title: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    paragraphs: Sequence[str] = ()
    verbatim: str = ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it."""
        return not (self.rows or self.facts or self.paragraphs or self.verbatim.strip())


def show(title: str, sections: Iterable[Section]) -> None:
    """Print a report, as Markdown where stdout is no terminal."""
    shown = [each for each in sections if not each.empty]
    if not sys.stdout.isatty():
        print("\n".join(markdown(title, shown)))
        return
    output.print_text(title, output.BOLD)
    for each in shown:
        print()
        _lay_out(each)


def markdown(title: str, sections: Iterable[Section]) -> Iterator[str]:
    """Give the lines of a report in Markdown; what is in it is escaped, so that it reads as it was written."""
    yield f"# {_escaped(title)}"
    for each in sections:
        yield f"\n## {_escaped(each.title)}"
        yield from (f"- {_escaped(text)}" for text in each.paragraphs)
        yield from (f"- {_escaped(name)}: {_escaped(value)}" for name, value in each.facts.items() if value)
        if each.rows:
            yield _row(each.headings)
            yield _row(["---"] * len(each.headings))
            yield from (_row([_escaped(cell, table=True) for cell in row]) for row in each.rows)
        if each.verbatim:
            # A fence longer than any in the text, since a traceback may hold one.
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", each.verbatim)), default=0))
            yield f"{fence}text\n{_plain(each.verbatim).rstrip()}\n{fence}"


def _row(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(cells)} |"


def _escaped(text: str, *, table: bool = False) -> str:
    """Return a text on one line without what Markdown or a terminal would take for its own.

    Code between backticks is as it was written, but for a bar in a table, which ends a cell in code, too.
    """

    def escape(found: re.Match[str]) -> str:
        """Return what stands for one match."""
        if found["code"] is None:
            return f"\\{found[0]}"
        return found[0].replace("|", r"\|") if table else found[0]

    return _SPECIAL.sub(escape, " ".join(_plain(text).split()))


def _plain(text: str) -> str:
    """Return a text without control characters, which a provider may have printed and a terminal would obey."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\N{REPLACEMENT CHARACTER}" for each in text)


def _folding(text: str) -> str:
    """Return a text without control characters, in which a path that no line has room for folds behind a slash."""
    room = max(1, output.terminal_width() - _INDENT)
    return " ".join(_in_steps(word, room) for word in _plain(text).split(" "))


def _in_steps(word: str, room: int) -> str:
    """Return a word with a blank behind the last slash of each piece that a line has room for."""
    pieces = []
    while len(word) > room and (place := word.rfind("/", 1, room)) > 0:
        pieces.append(word[: place + 1])
        word = word[place + 1 :]
    return " ".join([*pieces, word])


def _lay_out(each: Section) -> None:
    """Print a section for whoever sits before a terminal."""
    output.print_text(each.title, output.BOLD)
    for text in each.paragraphs:
        output.print_note("", _folding(text), output.BAD)
    output.print_facts({name: _folding(value) for name, value in each.facts.items()})
    if each.rows:
        kept = [place for place in range(len(each.headings)) if any(row[place] for row in each.rows)]
        output.print_table(
            [each.headings[place] for place in kept],
            [
                [(_folding(row[place]), output.BOLD if not place else output.PLAIN) for place in kept]
                for row in each.rows
            ],
        )
    if each.verbatim:
        output.print_verbatim(_plain(each.verbatim))
