"""Which ops an installed vLLM defines in torch: read as text, since importing it would define them.

What follows from that for our own ops is decided by `torch_binding`.
"""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path


@functools.cache
def vllm_ops() -> frozenset[str]:
    """Return the ops that an installed vLLM defines in the same torch namespace, read as text: vLLM is not imported."""
    spec = find_spec("vllm")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    return frozenset(name for folder in folders for name in read_vllm_ops(Path(folder)))


def read_vllm_ops(folder: Path) -> frozenset[str]:
    """Return the names of the functions decorated with `register_op` in a vLLM package's `ir/ops`."""
    if not (folder / "ir" / "op.py").is_file():
        return frozenset()
    names: set[str] = set()
    for file in sorted((folder / "ir" / "ops").glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names.update(name for name in (_registered_name(node, d) for d in node.decorator_list) if name)
    return frozenset(names)


def _registered_name(function: ast.FunctionDef, decorator: ast.expr) -> str | None:
    """Return the op's name if the decorator registers one: the function's, or that of a `name=` argument."""
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    called = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", None)
    if called != "register_op":
        return None
    given = next((k.value for k in keywords if k.arg == "name"), None)
    return str(given.value) if isinstance(given, ast.Constant) and given.value else function.name
