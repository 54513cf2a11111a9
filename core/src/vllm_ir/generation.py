"""Functions made from source, because binding `*args` would cost more than all of dispatch."""

from __future__ import annotations

import functools
import linecache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FunctionType


def make_function(source: str, name: str, scope: dict[str, Any]) -> FunctionType:
    """Return the function that a source defines, with lines that a traceback can show."""
    exec(_compile(source, name), scope)  # noqa: S102 - the source is made here, of checked names
    made: FunctionType = scope[name]
    return made


@functools.lru_cache(maxsize=1024)
def _compile(source: str, name: str) -> CodeType:
    """Return the code of a source; a scope that opens around each forward pass asks for the same ones again."""
    file = f"<vllm_ir {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec")
