"""Tables and paragraphs: widths, folding, and styles only where they show."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        """Tell that a person looks at it."""
        return True


def test_json_carries_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Every object says which version of itself it is."""
    output.emit_json({"a": ["é"]})
    assert json.loads(capsys.readouterr().out) == {"version": "1", "a": ["é"]}


def test_complaints_do_not_mix_with_data(capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence about the run goes to stderr."""
    output.complain("no.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "vllm-ir: no.\n")


def test_the_last_column_folds_and_no_line_is_too_long(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]
) -> None:
    """At 40 columns a long last cell goes on below itself."""
    columns(40)
    output.print_table(("name", "why"), [(("first", ""), ("a reason that needs more room than there is", ""))])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name   why", "first  a reason that needs more room", "       than there is"]


ROWS = [
    (("good", output.BOLD), ("missing library", output.BAD), ("all", ""), ("", ""), ("vllm-ir-provider-good 1.0", "")),
    (("spare", output.BOLD), ("not loaded", ""), ("cuda (from 8.0)", ""), ("2", ""), ("dist-spare 0.1.0", "")),
]


def test_where_columns_do_not_fit_each_row_is_a_paragraph(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]
) -> None:
    """No cell loses a letter, an empty one is left out, and a long one folds."""
    columns(30)
    output.print_table(("provider", "state", "platforms", "ops", "distribution"), ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "good",
        "  state: missing library",
        "  platforms: all",
        "  distribution:",
        "    vllm-ir-provider-good 1.0",
        "spare",
        "  state: not loaded",
        "  platforms: cuda (from 8.0)",
        "  ops: 2",
        "  distribution: dist-spare",
        "    0.1.0",
    ]


@pytest.mark.parametrize("width", [1, 20, 40, 60, 75, 76, 80, 200])
def test_no_width_loses_a_letter(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None], width: int
) -> None:
    """Whether in columns or in paragraphs, every word of every cell is there whole."""
    columns(width)
    output.print_table(("provider", "state", "platforms", "ops", "distribution"), ROWS)
    said = capsys.readouterr().out
    assert "…" not in said
    words = said.split()
    assert all(word in words for row in ROWS for text, _ in row for word in text.split())


def test_a_mark_without_a_heading_stands_before_the_name(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]
) -> None:
    """The candidate that runs is marked in a paragraph as it is in a table; rows without headings are set in."""
    columns(12)
    row = ((">", output.BOLD), ("provider_of_a_long_name", output.BOLD), ("runs", output.GOOD))
    output.print_table(("", "provider", "verdict"), [row])
    output.print_facts({"distribution": "a b", "url": ""})
    assert capsys.readouterr().out.splitlines() == [
        ">",
        "    provider_of_a_long_name",
        "  verdict:",
        "    runs",
        "distribution",
        "  a b",
    ]


def test_a_pipe_gets_one_line_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing folds where grep reads."""
    monkeypatch.delenv("COLUMNS", raising=False)
    output.print_rows([(("first", ""), ("word " * 60 + "end", ""))])
    assert capsys.readouterr().out.count("\n") == 1


def test_wide_and_combining_characters_keep_the_columns(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]
) -> None:
    """A name in another script does not push its row out of line."""
    columns(80)
    output.print_rows([(("核", ""), ("a", "")), (("e\u0301", ""), ("b", "")), (("xx", ""), ("c", ""))])
    assert capsys.readouterr().out.splitlines() == ["核  a", "e\u0301   b", "xx  c"]


def test_a_note_without_a_name_is_the_text_alone(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]
) -> None:
    """Paragraphs are set in, their further lines more."""
    columns(30)
    output.print_note("", "one two three four five six seven")
    output.print_note("name", "one two three four five six seven")
    assert capsys.readouterr().out.splitlines() == [
        "  one two three four five six",
        "    seven",
        "  name: one two three four",
        "    five six seven",
    ]


def test_a_docstring_folds_under_its_own_indent(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]
) -> None:
    """Each line folds for itself, and an empty one stays."""
    columns(24)
    output.print_paragraphs("Args:\n\n    x: any shape and any strides.")
    assert capsys.readouterr().out.splitlines() == ["Args:", "", "    x: any shape and any", "        strides."]


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str], columns: Callable[[int], None]) -> None:
    """An empty fact is no line, and no facts are no output."""
    columns(80)
    output.print_facts({"a": "1", "url": ""})
    output.print_facts({})
    assert capsys.readouterr().out == "a  1\n"


@pytest.mark.parametrize(("variables", "shown"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_styles_show_on_a_terminal_unless_it_cannot_or_must_not(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shown: bool
) -> None:
    """NO_COLOR and a dumb terminal get plain text."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    output.print_text("x", output.BAD)
    assert ("\x1b[31m" in terminal.getvalue()) is shown
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stdout", pipe)
    output.print_text("x", output.BAD)
    assert pipe.getvalue() == "x\n"


def test_a_terminal_that_tells_no_width_gets_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of zero columns, as some consoles report, is an ordinary one."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda _: type("Size", (), {"columns": 0})())
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    assert output.terminal_width() == 80


def test_a_reader_who_has_gone_is_no_finding(tmp_path: Path) -> None:
    """`vllm-ir list --all | true` ends as the shell says for a closed pipe, not with the code of a finding."""
    command = f"{shlex.quote(sys.executable)} -m vllm_ir list --all | true; exit ${{PIPESTATUS[0]}}"
    codes = {subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False).returncode for _ in range(3)}
    assert codes <= {0, 141}
