"""Known failures: data with a reason, held strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir_testkit import Finding, KnownFailure, known
from vllm_ir_testkit.errors import BadKnownFailures

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = KnownFailure(op="rms_norm", check="values", reason="tail", case="float16*", file="known.toml")


def write(folder: Path, text: str) -> Path:
    """Write a file of known failures."""
    file = folder / known.FILE
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_is_read(tmp_path: Path) -> None:
    """Case and platform are optional."""
    file = write(
        tmp_path,
        'schema = 1\n[[failure]]\nop = "rms_norm"\ncheck = "values"\nreason = "tail"\n'
        '[[failure]]\nop = "*"\ncheck = "compile"\ncase = "float16*"\nplatform = "cpu"\nreason = "numpy"\n',
    )
    first, second = known.read(file)
    assert first == KnownFailure("rms_norm", "values", "tail", file=str(file))
    assert (second.op, second.case, second.platform) == ("*", "float16*", "cpu")
    assert known.read(write(tmp_path, "schema = 1\n")) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("schema = ", "cannot be read"),
        ("", "schema is None"),
        ("schema = 2", "schema is 2"),
        ("schema = 1\nfailures = []", "unknown keys 'failures'"),
        ("schema = 1\nfailure = 3", "no list of tables"),
        ('schema = 1\n[[failure]]\nop = "a"\ncheck = "values"', "entry 1 has no reason"),
        ('schema = 1\n[[failure]]\nop = "a"\ncheck = "values"\nreason = " "', "entry 1 has reason = ' '"),
        ('schema = 1\n[[failure]]\nop = "a"\nchek = "values"\nreason = "x"', "Did you mean 'check'"),
        ('schema = 1\n[[failure]]\nop = "a"\ncheck = "value"\nreason = "x"', "Did you mean 'values'"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, sentence: str) -> None:
    """A mistake in the file never hides a failure."""
    with pytest.raises(BadKnownFailures) as caught:
        known.read(write(tmp_path, text))
    assert sentence in str(caught.value)


def test_what_is_known_is_marked_and_the_rest_is_not() -> None:
    """A pattern covers the cases that it matches."""
    found = known.judge(
        [Finding("float16 5", "wrong"), Finding("float32 5", "wrong")], [ENTRY], "rms_norm", "values", "cpu"
    )
    assert [each.known for each in found] == ["tail", None]


def test_an_entry_that_covers_nothing_any_more_is_a_finding() -> None:
    """A fault that was mended leaves the file, or nobody would see it come back."""
    (found,) = known.judge([], [ENTRY], "rms_norm", "values", "cpu")
    assert found.known is None
    assert "passes now; take the entry out of known.toml" in found.what


@pytest.mark.parametrize(("op", "check"), [("silu_and_mul", "values"), ("rms_norm", "layout")])
def test_an_entry_about_something_else_says_nothing(op: str, check: str) -> None:
    """Another op or check is another matter."""
    assert known.judge([], [ENTRY], op, check, "cpu") == ()
