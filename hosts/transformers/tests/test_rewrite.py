"""Copies of functions: everything but the named change is as it was, and what cannot be read is refused."""

from __future__ import annotations

import functools
import inspect
import linecache
import traceback
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from transformers.models.llama import modeling_llama
from vllm_ir import Unsupported
from vllm_ir_host_transformers import edits, rewrite

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable
    from pathlib import Path


def helper(x: int) -> int:
    """Return a number by its global name."""
    return x + 1


def doubling(function: Callable[..., int]) -> Callable[..., int]:
    """Double what a function returns."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        """Run the function."""
        return 2 * function(*args, **kwargs)

    return wrapper


@doubling
@doubling
def decorated(x: int, y: int = 10, *, z: int = 100) -> int:
    """Return a sum."""
    return helper(x) + y + z


def plain(x: int) -> int:
    """Return a number."""
    return helper(x)


def outer() -> Callable[[], int]:
    """Return a closure."""
    kept = 3

    def inner() -> int:
        """Return what was kept."""
        return kept

    return inner


class Hidden:
    """A wrapper that keeps its function out of reach."""

    @staticmethod
    def wrap(function: Callable[..., int]) -> Callable[..., int]:
        """Return a function that claims to wrap another and holds it in a box."""
        box = {"function": function}

        def wrapper(x: int) -> int:
            """Run the function."""
            return box["function"](x)

        return functools.update_wrapper(wrapper, function)


def copy_of(function: Any, names: dict[str, Any], change: Callable[[ast.FunctionDef], None] | None = None) -> Any:
    """Return a copy with other names and, if given, other code."""
    return edits.edited(function, (edits.Edit(("test", id(change), *names), names, change),))


@pytest.mark.parametrize("change", [None, lambda _: None], ids=["names only", "compiled anew"])
def test_a_copy_means_another_function_by_a_name(change: Callable[[ast.FunctionDef], None] | None) -> None:
    """The wrappers run around it, defaults and keywords hold, and the original is untouched."""
    copy = copy_of(decorated, {"helper": lambda x: -x}, change)
    assert copy(1) == 4 * (-1 + 10 + 100)
    assert copy(1, 2, z=3) == 4 * (-1 + 2 + 3)
    assert decorated(1) == 4 * (2 + 10 + 100)


def test_a_copy_looks_like_the_original() -> None:
    """Name, module, text, annotations and signature are those of the function."""
    copy = copy_of(decorated, {"helper": helper}, lambda _: None)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
        assert getattr(copy, attribute) == getattr(decorated, attribute)
    assert inspect.signature(copy) == inspect.signature(decorated)
    assert inspect.unwrap(copy) is not inspect.unwrap(decorated)


def test_a_traceback_through_a_copy_shows_the_source() -> None:
    """An error in a rewritten forward points at the file and line that a person can read."""

    def fail(x: int) -> float:
        """Fail."""
        return x / 0

    copy = copy_of(plain, {"helper": fail}, lambda _: None)
    with pytest.raises(ZeroDivisionError) as caught:
        copy(1)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.filename == __file__ and frame.line == "return helper(x)" for frame in frames)


def test_copies_of_one_change_are_one_function() -> None:
    """All layers of a model share a copy, and so what Dynamo compiled for it."""
    edit = edits.Edit(("test",), {"helper": helper})
    assert edits.edited(plain, (edit,)) is edits.edited(plain, (edits.Edit(("test",), {"helper": helper}),))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (outer(), "its forward is a closure"),
        (len, "its forward is not a Python function"),
        (Hidden.wrap(plain), "keeps the function out of reach"),
        (eval("lambda x: x"), "cannot be read"),  # noqa: S307 - a function without a file
    ],
    ids=["closure", "builtin", "hidden", "no source"],
)
def test_what_cannot_be_read_is_refused(function: Any, reason: str) -> None:
    """A refusal with the reason, never an error."""
    found = rewrite.read(function)
    assert isinstance(found, Unsupported)
    assert reason in found.reason


def test_a_file_that_changed_since_its_import_is_not_believed(tmp_path: Path) -> None:
    """The source is compiled and compared with the code that runs before anything is concluded from it."""
    file = tmp_path / "changing.py"
    file.write_text("def f(x):\n    return x + 1\n", encoding="utf-8")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), space)  # noqa: S102 - a module by hand
    file.write_text("def f(x):\n    return x + 2\n", encoding="utf-8")
    linecache.checkcache(str(file))
    found = rewrite.read(space["f"])
    assert isinstance(found, Unsupported)
    assert found.reason == "the source of its forward is not the code that runs"


def test_every_forward_of_llama_can_be_read() -> None:
    """What is compiled from the source is, instruction for instruction, what Python imported."""
    for cls in (modeling_llama.LlamaDecoderLayer, modeling_llama.LlamaMLP, modeling_llama.LlamaModel):
        reading = rewrite.read(cls.forward)
        assert isinstance(reading, rewrite.Reading)
        assert isinstance(reading.inner, FunctionType)
        assert reading.inner.__name__ == "forward"
