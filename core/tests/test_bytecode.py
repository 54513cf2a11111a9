"""Constants and code as bytes: told apart where they differ, the same in every process."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir import bytecode

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", 1),
        ("ab", b"ab"),
        (("a", "b"), ("ab",)),
        (("a", ("b",)), ("a", "b")),
        ((), frozenset()),
        (None, ...),
        (1 + 2j, 2 + 1j),
        (range(3), range(3, 6)),
    ],
)
def test_different_constants_have_different_bytes(one: object, other: object) -> None:
    """Also such as Python takes for equal."""
    assert bytecode.constant(one) is not None
    assert bytecode.constant(one) != bytecode.constant(other)


def test_what_is_no_constant_has_no_bytes() -> None:
    """A list may change, and an object has an address; so may have what a tuple holds."""
    for value in ([], {}, object(), (1, []), frozenset({object()}), math, len):
        assert bytecode.constant(value) is None


def test_not_a_number_is_a_constant() -> None:
    """It is not equal to itself, and has the same bytes all the same."""
    assert bytecode.constant(math.nan) == bytecode.constant(float("nan"))


def test_a_text_that_is_no_unicode() -> None:
    """Half of a surrogate pair can be in a source."""
    assert bytecode.constant("\ud800") != bytecode.constant("\ud801")


def test_only_the_last_part_of_a_place_takes_part_when_asked(tmp_path: Path) -> None:
    """A file that exists is a place; what only looks like one is a text like others."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.bin").touch()
    one, other = (str(tmp_path / name / "table.bin") for name in ("one", "other"))
    assert bytecode.constant(one) != bytecode.constant(other)
    assert bytecode.constant(one, placed=False) == bytecode.constant(other, placed=False)
    assert bytecode.constant(f"{one}x", placed=False) != bytecode.constant(f"{other}x", placed=False)
    assert bytecode.constant("/\0", placed=False) is not None
    assert bytecode.constant("/" * 100_000, placed=False) is not None


def test_parts_can_be_told_apart() -> None:
    """No two lists of parts are joined to the same bytes."""
    assert bytecode.join([b"ab", b""]) != bytecode.join([b"a", b"b"])
    assert bytecode.join([b"1:a"]) != bytecode.join([b"1", b"a"])


def test_names_that_code_reads_and_sets() -> None:
    """Globals that are read, also from inside, and names of a closure that are set again."""

    def outer() -> Any:
        """Have a closure."""
        kept = counted = 0

        def inner() -> Any:
            """Read one and set the other."""
            nonlocal counted
            counted += 1
            return lambda: (kept, math.pi, len)

        return inner

    code = outer().__code__
    assert bytecode.loaded(code) == ("len", "math")
    assert bytecode.rebound(code) == {"counted"}


def test_names_that_a_module_sets() -> None:
    """What any function or method of a module sets is state, whichever reads it."""
    scope: dict[str, Any] = {"math": math}
    source = "def f():\n global a\n a = 1\nclass C:\n def m(self):\n  global b\n  del b\ndef g(): return a, b, c\n"
    exec(source, scope)  # noqa: S102 - the test's own text
    assert bytecode.stored(scope) == {"a", "b"}
