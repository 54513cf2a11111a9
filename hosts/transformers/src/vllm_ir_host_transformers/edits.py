"""Edits of one forward: what is rewritten in it and which names mean something else, and the copy they lead to.

A module may need several, so they are gathered first and the forward is rebuilt once; modules that need the same edits
of the same function share one copy, and so what Dynamo compiled for it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm_ir import Unsupported

from vllm_ir_host_transformers import rewrite

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Mapping
    from types import FunctionType


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a forward; two edits with one key are the same change.

    Attributes:
        key: what tells this edit from others of the same function.
        names: global names of the copy and what they mean there.
        change: edits the definition in place; None when other names are all it takes.
    """

    key: tuple[Any, ...]
    names: Mapping[str, Any] = field(compare=False)
    change: Callable[[ast.FunctionDef], None] | None = field(default=None, compare=False)


@cache
def reading_of(function: Callable[..., Any]) -> rewrite.Reading | Unsupported:
    """Return how a forward was written; read once per function."""
    return rewrite.read(function)


@cache
def edited(function: Callable[..., Any], edits: tuple[Edit, ...]) -> FunctionType | Unsupported:
    """Return a copy of a forward with these edits, or why it cannot be made."""
    names: dict[str, Any] = {}
    for edit in edits:
        names.update(edit.names)
    changes = [edit.change for edit in edits if edit.change is not None]
    if not changes:
        found = rewrite.unwrap(function)
        return found if isinstance(found, Unsupported) else rewrite.rebuild(*found, names)
    reading = reading_of(function)
    if isinstance(reading, Unsupported):
        return reading
    tree = copy.deepcopy(reading.tree)
    for change in changes:
        change(tree)
    code = rewrite.compile_body(tree, reading)
    return rewrite.rebuild(reading.wrappers, reading.inner, names, code)
