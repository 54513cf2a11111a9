"""What an op means, read from the source of its native function as text: `show` imports neither torch nor the op.

Whether the op is registered is not asked here; `explain` without `--static` runs the real thing.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECORATOR: Final = "register_op"


@dataclass(frozen=True, slots=True)
class Meaning:
    """The native function of an op as its source tells.

    Attributes:
        signature: parameters with types and defaults, and what it returns.
        doc: its docstring; empty where it has none.
        source: its text.
        file: where it is.
        line: its first line there.
    """

    signature: str
    doc: str
    source: str
    file: str
    line: int


def read_meaning(op: str, package: str) -> Meaning | None:
    """Return the meaning of an op that a package declares, or None where no file of it does so in plain sight.

    Args:
        op: the op's name.
        package: the top-level package to look through.
    """
    for path in _files(package):
        text = path.read_text(encoding="utf-8", errors="replace")
        if _DECORATOR not in text or op not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and op in _declared(node):
                return _meaning(op, node, path, text)
    return None


def _files(package: str) -> Iterator[Path]:
    """Yield the Python files of a package, found without importing it."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(folder).rglob("*.py"))


def _declared(node: ast.FunctionDef) -> Iterator[str]:
    """Yield the name of the op that a decorated function declares."""
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        function = call.func if call else decorator
        if ast.unparse(function).rpartition(".")[2] != _DECORATOR:
            continue
        named = [word.value for word in call.keywords if word.arg == "name"] if call else []
        given = named[0] if named else None
        yield str(given.value) if isinstance(given, ast.Constant) and given.value else node.name


def _meaning(op: str, node: ast.FunctionDef, path: Path, text: str) -> Meaning:
    """Return what a declaration says."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return Meaning(
        signature=f"{op}({_parameters(node.args, composed=_composed(node))}){returns}",
        doc=cleandoc(ast.get_docstring(node) or ""),
        source="\n".join(lines),
        file=str(path),
        line=first,
    )


def _composed(node: ast.FunctionDef) -> bool:
    """Tell whether a function is a meaning over parts, which it takes first and which are no parameter of the op."""
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    words = {
        word.arg for each in calls if ast.unparse(each.func).rpartition(".")[2] == _DECORATOR for word in each.keywords
    }
    return "parts" in words and "expansion" not in words


def _parameters(arguments: ast.arguments, *, composed: bool) -> str:
    """Return parameters as they are usually written; an op has no others than named ones."""
    named = [*arguments.posonlyargs, *arguments.args][composed:]
    defaults = [None] * (len(named) - len(arguments.defaults)) + list(arguments.defaults)
    parts = []
    for one, default in zip(named, defaults, strict=True):
        value = f" = {ast.unparse(default)}" if default is not None else ""
        parts.append(f"{ast.unparse(one)}{value}")
    return ", ".join(parts)
