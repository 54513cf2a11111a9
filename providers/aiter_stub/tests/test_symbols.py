"""What sources say of a function, and whether a call fits."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from vllm_ir_provider_aiter import symbols
from vllm_ir_provider_aiter.symbols import CALLED, Called

if TYPE_CHECKING:
    from pathlib import Path

    from providers.aiter_stub.tests.conftest import Site

CALL = Called("f", ("a", "b"), ("c",))


def signature(text: str) -> symbols.Signature:
    """Return the signature of a function that is written down."""
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.FunctionDef)
    return symbols.signature_of(node)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("def f(a, b, c): ...", True),
        ("def f(a, b, c=0): ...", True),
        ("def f(a, b=1, c=0): ...", True),
        ("def f(a, b, new=None, c=0): ...", True),
        ("def f(a, b, c, new=None): ...", True),
        ("def f(a, b, c, new): ...", False),
        ("def f(b, a, c): ...", False),
        ("def f(a, c, b): ...", False),
        ("def f(a, b): ...", False),
        ("def f(a, b, d=0): ...", False),
        ("def f(a, b, c, *more): ...", False),
        ("def f(a, b, *, c): ...", False),
        ("def f(a, b, /, c): ...", False),
        ("def f(**all): ...", False),
    ],
)
def test_a_call_fits_where_python_would_take_it(text: str, fits: bool) -> None:
    """The same names at the same places, what is given by name is there, and nothing else has to be given."""
    assert signature(text).takes(CALL) is fits


def test_signatures_and_calls_are_told_as_they_are_written() -> None:
    """A refusal shows both, one under the other."""
    assert str(signature("def f(a, b: int, c=0): ...")) == "f(a, b, c=)"
    assert str(CALL) == "f(a, b, c=)"


@pytest.mark.parametrize("op", CALLED)
def test_the_stand_in_has_what_is_called(unlabelled: Site, op: str) -> None:
    """Its sources are read as AITER's are."""
    found = symbols.read(unlabelled.package, CALLED[op].name)
    assert found is not None
    assert found.takes(CALLED[op])


def test_only_a_function_of_a_module_counts(tmp_path: Path) -> None:
    """Neither a method nor a function inside another is exported."""
    (tmp_path / "ops").mkdir()
    text = "class A:\n    def f(self): ...\n\ndef g():\n    def f(): ...\n"
    (tmp_path / "ops" / "one.py").write_text(text, encoding="utf-8")
    assert symbols.read(tmp_path, "f") is None
    assert symbols.read(tmp_path, "g") is not None
    assert symbols.read(tmp_path, "absent") is None
