"""Copies of a function: the same wrappers around other code, so that one instance runs otherwise than its class.

What is put into the code belongs to the rooms that know a shape; here is only how a function is read and rebuilt.
"""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from vllm_ir import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Reading:
    """A function as it was written.

    Attributes:
        wrappers: the functions around it, outermost first; each holds the next one in its closure.
        inner: the function that a person wrote.
        tree: its definition, parsed; line numbers are those of its file.
        imports: the import statements of its file.
    """

    wrappers: tuple[FunctionType, ...]
    inner: FunctionType
    tree: ast.FunctionDef
    imports: tuple[ast.Import | ast.ImportFrom, ...]


def unwrap(function: Any) -> tuple[tuple[FunctionType, ...], FunctionType] | Unsupported:
    """Return the wrappers of a function, outermost first, and the function inside them all."""
    wrappers: list[FunctionType] = []
    while isinstance(function, FunctionType) and "__wrapped__" in function.__dict__:
        wrappers.append(function)
        function = function.__wrapped__  # type: ignore[attr-defined]
        if not any(_holds(cell, function) for cell in wrappers[-1].__closure__ or ()):
            return Unsupported("a decorator of its forward keeps the function out of reach")
    if not isinstance(function, FunctionType):
        return Unsupported("its forward is not a Python function")
    return tuple(wrappers), function


def read(function: Any) -> Reading | Unsupported:
    """Return a function with its syntax tree, or why the tree cannot be had or trusted."""
    found = unwrap(function)
    if isinstance(found, Unsupported):
        return found
    wrappers, inner = found
    if inner.__code__.co_freevars:
        return Unsupported("its forward is a closure")
    module = _module_of(inner.__code__.co_filename)
    found_tree = None if module is None else _definition(module, inner.__code__)
    if module is None or found_tree is None:
        return Unsupported("the source of its forward cannot be read")
    imports = tuple(node for node in ast.walk(module) if isinstance(node, (ast.Import, ast.ImportFrom)))
    reading = Reading(wrappers, inner, found_tree, imports)
    # A file that was edited after the import, or rewritten by an import hook, does not tell what runs.
    if not _same_code(compile_body(found_tree, reading), inner.__code__):
        return Unsupported("the source of its forward is not the code that runs")
    return reading


def compile_body(tree: ast.FunctionDef, reading: Reading) -> CodeType:
    """Return the code of a definition; defaults, annotations and decorators stay with the function it came from."""
    arguments = ast.arguments(
        posonlyargs=[ast.arg(arg=arg.arg) for arg in tree.args.posonlyargs],
        args=[ast.arg(arg=arg.arg) for arg in tree.args.args],
        vararg=ast.arg(arg=tree.args.vararg.arg) if tree.args.vararg else None,
        kwonlyargs=[ast.arg(arg=arg.arg) for arg in tree.args.kwonlyargs],
        kw_defaults=[None] * len(tree.args.kwonlyargs),
        kwarg=ast.arg(arg=tree.args.kwarg.arg) if tree.args.kwarg else None,
        defaults=[],
    )
    bare = ast.FunctionDef(name=tree.name, args=arguments, body=tree.body, decorator_list=[], returns=None)
    bare.__dict__["type_params"] = []  # Python 3.12 wants the field, 3.11 does not know it.
    ast.copy_location(bare, tree)
    # The compiler calls a method of an imported name by other instructions, so it has to know the imports; none runs.
    module = ast.fix_missing_locations(ast.Module(body=[*reading.imports, bare], type_ignores=[]))
    code = compile(module, reading.inner.__code__.co_filename, "exec", dont_inherit=True)
    return next(const for const in code.co_consts if isinstance(const, CodeType))


def rebuild(
    wrappers: Sequence[FunctionType],
    inner: FunctionType,
    names: Mapping[str, Any],
    code: CodeType | None = None,
) -> FunctionType:
    """Return a copy of a wrapped function in which some global names mean something else.

    Args:
        wrappers: the wrappers of the function, outermost first.
        inner: the function inside them.
        names: what the names mean in the copy.
        code: the code of the copy; that of `inner` when None.
    """
    variables = {**inner.__globals__, **names}
    # Dynamo looks a global up in the module called __name__, where our names are not; without it, it looks here.
    variables.pop("__name__", None)
    copy = _copied(inner, code or inner.__code__, variables, inner.__closure__)
    inside = inner
    for wrapper in reversed(wrappers):
        cells = tuple(CellType(copy) if _holds(cell, inside) else cell for cell in wrapper.__closure__ or ())
        inside, copy = wrapper, _copied(wrapper, wrapper.__code__, wrapper.__globals__, cells, wrapped=copy)
    return copy


def _copied(
    function: FunctionType,
    code: CodeType,
    variables: dict[str, Any],
    closure: tuple[CellType, ...] | None,
    wrapped: FunctionType | None = None,
) -> FunctionType:
    """Return a function with another code, other globals or another closure, and all else the same."""
    copy = FunctionType(code, variables, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    copy.__dict__.update(function.__dict__)
    if wrapped is not None:
        copy.__dict__["__wrapped__"] = wrapped
    return copy


@lru_cache(maxsize=64)
def _module_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file, or None when it cannot be had."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def _definition(module: ast.Module, code: CodeType) -> ast.FunctionDef | None:
    """Return the definition that a code was compiled from, by its name and first line."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
    return None


def _holds(cell: CellType, function: object) -> bool:
    """Tell whether a cell of a closure holds exactly this function."""
    try:
        return cell.cell_contents is function
    except ValueError:  # The cell is empty.
        return False


def _same_code(one: CodeType, other: CodeType) -> bool:
    """Tell whether two codes do the same, whatever their line and column numbers."""
    if (one.co_code, one.co_names, one.co_varnames) != (other.co_code, other.co_names, other.co_varnames):
        return False
    pairs = list(zip(one.co_consts, other.co_consts, strict=False))
    return len(one.co_consts) == len(other.co_consts) and all(
        _same_code(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a == b for a, b in pairs
    )
