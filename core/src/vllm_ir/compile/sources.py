"""How a user wrote what a graph shows: the expression of an argument, read from the line that the call is on."""

from __future__ import annotations

import ast
import linecache
import textwrap
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.compile import torch_frames
from vllm_ir.compile.graph import lines_of

if TYPE_CHECKING:
    from torch import fx

CALL: Final = "maybe_inplace"
"""What is called."""

LINES: Final = 12
"""How many lines a call may go over."""


def written_argument(node: fx.Node, argument: Any, index: int, parameter: str) -> str:
    """Return how a user wrote an argument of a donating call, or how a program reaches it; empty where nobody knows.

    Args:
        node: the call.
        argument: what it is given.
        index: its position.
        parameter: its name.
    """
    lines = lines_of(node)
    found = _in_source(lines[-1][0], int(lines[-1][1]), index, parameter) if lines else None
    return found or torch_frames.source_name(argument)


def _in_source(file: str, number: int, index: int, parameter: str) -> str | None:
    """Return an argument of the only donating call that begins on a line, or None."""
    source = linecache.getlines(file)[number - 1 : number - 1 + LINES]
    for count in range(1, len(source) + 1):
        try:
            tree = ast.parse(textwrap.dedent("".join(source[:count])))
        except SyntaxError:
            continue
        calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and _name(each.func) == CALL]
        return _argument(calls[0], index, parameter) if len(calls) == 1 else None
    return None


def _argument(call: ast.Call, index: int, parameter: str) -> str | None:
    """Return the source of a call's argument."""
    for keyword in call.keywords:
        if keyword.arg == parameter:
            return ast.unparse(keyword.value)
    before = call.args[: index + 1]
    if len(before) <= index or any(isinstance(each, ast.Starred) for each in before):
        return None
    return ast.unparse(before[index])


def _name(function: ast.expr) -> str:
    """Return the last part of what is called."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
