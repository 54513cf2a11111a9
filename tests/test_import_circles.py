"""No two modules of a distribution know each other, types included: whichever is read first needs the other.

The core has levels of its own, and `core/tests/test_layers.py` for them.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Workspace


def modules_of(package: Path) -> dict[str, Path]:
    """Return the modules of an import package by their dotted names."""
    return {
        ".".join((package.name, *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in sorted(package.rglob("*.py"))
    }


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Yield the known modules that a module imports anywhere, also inside a function or for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module or ""


def circle(package: Path) -> list[str]:
    """Return modules of a package that lead from one to itself, or none."""
    modules = modules_of(package)
    graph = {
        name: set(imported(ast.parse(path.read_text(encoding="utf-8")), set(modules) - {name}))
        for name, path in modules.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_module_is_imported_by_what_it_imports(workspace: Workspace) -> None:
    """Every package but the core's can be read from one end to the other."""
    packages = [package for one in workspace.distributions for package in one.packages if package.name != "vllm_ir"]
    assert {package.name: found for package in packages if (found := circle(package))} == {}
    assert len(packages) > 1


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    """One that goes through a function and through `TYPE_CHECKING` is a circle, too."""
    package = tmp_path / "planted"
    (package / "deep").mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "a.py").write_text("if TYPE_CHECKING:\n    from planted.deep.b import B\n", encoding="utf-8")
    (package / "deep" / "b.py").write_text("def f():\n    from planted import a\n", encoding="utf-8")
    assert set(circle(package)) == {"planted.a", "planted.deep.b"}
    (package / "a.py").write_text("import os\n", encoding="utf-8")
    assert circle(package) == []
