"""Reports of several sections, as Markdown and laid out: nothing is lost, and nothing is taken for markup."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from vllm_ir.cli import pages
from vllm_ir.cli.pages import Section

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

SECTIONS = (
    Section("nothing", ("a", "b"), facts={}, verbatim=" \n"),
    Section("findings", paragraphs=["One | two.\nThree."]),
    Section("facts", facts={"a": "1", "b": ""}),
    Section("table", ("name", "value"), [("x_y", "a|b <c>"), ("__init__", "*")]),
    Section("code", verbatim="Traceback\n  ```\n  x | \x1b[2Jy\n"),
)


def test_markdown_says_what_was_written() -> None:
    """What Markdown would take for its own is escaped, a fence is longer than any in the text; empty parts are few."""
    shown = [each for each in SECTIONS if not each.empty]
    text = "\n".join(pages.markdown("report", shown))
    assert text == (
        "# report\n"
        "\n## findings\n- One \\| two. Three.\n"
        "\n## facts\n- a: 1\n"
        "\n## table\n| name | value |\n| --- | --- |\n| x_y | a\\|b \\<c> |\n| \\_\\_init_\\_ | \\* |\n"
        "\n## code\n````text\nTraceback\n  ```\n  x | \ufffd[2Jy\n````"
    )


def test_code_between_backticks_is_as_it_was_written() -> None:
    """It is there to be copied; a bar ends a table's cell even there, and one backtick alone begins no code."""
    told = "__a__: `rm '/x/__init__.py' | <b>` and ``a`*`` then ` __b__"
    text = "\n".join(pages.markdown("r", [Section("s", ("h",), [(told,)], paragraphs=[told])]))
    assert text.splitlines()[3] == ("- \\_\\_a_\\_: `rm '/x/__init__.py' | <b>` and ``a`*`` then ` \\_\\_b_\\_")
    assert "`rm '/x/__init__.py' \\| <b>` and ``a`*`` then" in text.splitlines()[6]


def test_a_part_without_content_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither as Markdown nor laid out is there a heading above nothing."""
    pages.show("report", SECTIONS)
    out = capsys.readouterr().out
    assert "nothing" not in out
    assert out.startswith("# report\n")


def test_a_terminal_gets_no_empty_column(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column in which no row has anything is left out, and text is as it was written."""
    columns(80)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    rows = [("x_y", "", "1|2"), ("z", "", "3")]
    pages.show("report", [Section("table", ("name", "problem", "value"), rows), Section("code", verbatim="  x\n")])
    assert capsys.readouterr().out.splitlines() == [
        "report", "", "table", "name  value", "x_y   1|2", "z     3", "", "code", "  x",
    ]  # fmt: skip


def test_a_path_that_no_line_has_room_for_folds_behind_a_slash(
    capsys: pytest.CaptureFixture[str], columns: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of findings, facts and tables is too long, and no letter is lost; where there is room it is whole."""
    path = "/opt/environments/serving/lib/python3.11/site-packages/package"
    sections = [
        Section("findings", paragraphs=[f"cache {path}: It is no folder."]),
        Section("facts", facts={"python": path}),
        Section("table", ("folder", "mode"), [(path, "drwx------ a-long-owner a-long-group"), ("/b", "-")]),
    ]
    pages.show("report", sections)
    assert capsys.readouterr().out.count(path) == 3
    columns(40)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    pages.show("report", sections)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 40
    assert "".join(out.split()).count(path) == 3
    columns(120)
    pages.show("report", sections)
    assert capsys.readouterr().out.count(path) == 3
