"""The layers of the core: `docs/layers.md` is the table, this is what holds it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "vllm_ir"
SOURCE = ROOT / "core" / "src"
DOORS = ("__init__", "__main__")


@dataclass(frozen=True, slots=True)
class Edge:
    """One import: who has it, on which line, of what, and whether only a type checker runs it."""

    importer: str
    line: int
    imported: str
    type_only: bool


def read_levels(document: str) -> dict[str, int]:
    """Read the table of module and level from the page."""
    levels: dict[str, int] = {}
    for row in document.splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if row.startswith("|") and cells[0].isdigit():
            levels.update({name: int(cells[0]) for name in cells[1].replace("`", "").split()})
    return levels


def module_name(path: Path, source: Path) -> str:
    """Return the dotted name of a source file."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """Return the row of the table that a module belongs to: `vllm_ir.plugins.policy` is in `plugins`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def is_type_checking(node: ast.AST) -> bool:
    """Tell whether a node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported_names(node: ast.AST, module: str, *, is_package: bool) -> list[str]:
    """Return the dotted names that an import statement, or an `import_module("...")`, may bind."""
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom):
        parts = module.split(".")
        base = parts[: len(parts) - node.level + is_package] if node.level else []
        prefix = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{prefix}.{name.name}" for name in node.names]
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func).endswith(("import_module", "__import__")):
        first = node.args[0]
        return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
    return []


def read_imports(source: Path) -> tuple[list[Edge], set[str]]:
    """Return every import inside the package, and the names of all its modules."""
    files = {module_name(path, source): path for path in sorted((source / PACKAGE).rglob("*.py"))}
    edges: list[Edge] = []

    def visit(node: ast.AST, module: str, *, type_only: bool) -> None:
        for name in imported_names(node, module, is_package=files[module].name == "__init__.py"):
            while name and name not in files:
                name = name.rpartition(".")[0]  # noqa: PLW2901 - an attribute belongs to the module before it
            if name and name != module:
                edges.append(Edge(module, getattr(node, "lineno", 0), name, type_only))
        for child in ast.iter_child_nodes(node):
            inside = isinstance(node, ast.If) and is_type_checking(node) and child in node.body
            visit(child, module, type_only=type_only or inside)

    for module, path in files.items():
        visit(ast.parse(path.read_text(encoding="utf-8")), module, type_only=False)
    return edges, set(files)


def violations(source: Path, levels: dict[str, int]) -> list[str]:
    """Return one sentence for each upward import, each cycle of one level, and each module without a level."""
    edges, modules = read_imports(source)
    found = [f"{module} is not in the table" for module in sorted(modules) if room(module) not in levels]
    if found:
        return found
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for edge in edges:
        below, above = levels[room(edge.importer)], levels[room(edge.imported)]
        if above > below:
            found.append(f"{edge.importer}:{edge.line} (level {below}) imports {edge.imported} (level {above})")
        elif above == below and room(edge.importer) != room(edge.imported) and not edge.type_only:
            graph[room(edge.importer)] = graph.get(room(edge.importer), set()) | {room(edge.imported)}
    return found + [f"{name} imports itself over {path}" for name, path in cycles(graph)]


def cycles(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return each node that can reach itself, with one way to do so."""
    found = []
    for start in sorted(graph):
        paths, seen = [[start]], set[str]()
        while paths:
            path = paths.pop()
            for following in sorted(graph.get(path[-1], ())):
                if following == start:
                    found.append((start, " -> ".join([*path, start])))
                    paths.clear()
                    break
                if following not in seen:
                    seen.add(following)
                    paths.append([*path, following])
    return found


@pytest.fixture(scope="module")
def levels() -> dict[str, int]:
    """Give the table of the page."""
    return read_levels((ROOT / "docs" / "layers.md").read_text(encoding="utf-8"))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """Give a small package with one module in each of four rooms and no imports."""
    for name in (
        "__init__",
        "signature",
        "op",
        "runtime",
        "registry",
        "dispatch",
        "plugins/__init__",
        "plugins/policy",
    ):
        path = tmp_path / PACKAGE / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    return tmp_path


def test_no_import_runs_upward(levels: dict[str, int]) -> None:
    """Every import inside the core points to a lower level, or sideways without a cycle."""
    assert violations(SOURCE, levels) == []


def test_the_table_has_no_module_that_is_gone(levels: dict[str, int]) -> None:
    """Each row of the page names a module that exists."""
    _, modules = read_imports(SOURCE)
    assert set(levels) - {room(module) for module in modules} - {"__main__"} == set()


@pytest.mark.parametrize(
    "statement",
    [
        "from vllm_ir.runtime import current",
        "from vllm_ir import runtime",
        "import vllm_ir.runtime as r",
        "from .runtime import current",
        "from . import runtime",
        "def late() -> None:\n    from vllm_ir.runtime import current\n",
        "if TYPE_CHECKING:\n    from vllm_ir.runtime import Runtime\n",
        "import importlib\nimportlib.import_module('vllm_ir.runtime')",
        "from vllm_ir import op\nfrom vllm_ir import current_platform",
    ],
)  # fmt: skip
def test_a_planted_upward_import_is_found(planted: Path, levels: dict[str, int], statement: str) -> None:
    """Whatever way an upward import is written, it is found with its line."""
    (planted / PACKAGE / "signature.py").write_text(statement, encoding="utf-8")
    found = violations(planted, levels)
    assert found
    assert all(sentence.startswith("vllm_ir.signature:") for sentence in found)


def test_a_relative_import_is_read_from_inside_a_package(planted: Path, levels: dict[str, int]) -> None:
    """Two dots in `plugins/policy.py` are the core, one dot is its own package."""
    policy = planted / PACKAGE / "plugins" / "policy.py"
    policy.write_text("from ..cli import main\nfrom . import policy\nfrom .. import op\n", encoding="utf-8")
    (planted / PACKAGE / "cli.py").write_text("", encoding="utf-8")
    assert violations(planted, levels) == ["vllm_ir.plugins.policy:1 (level 8) imports vllm_ir.cli (level 10)"]


def test_a_downward_import_is_fine(planted: Path, levels: dict[str, int]) -> None:
    """A higher room may use a lower one."""
    (planted / PACKAGE / "runtime.py").write_text("from vllm_ir.op import IrOp", encoding="utf-8")
    assert violations(planted, levels) == []


def test_a_cycle_of_one_level_is_found(planted: Path, levels: dict[str, int]) -> None:
    """Two rooms of one level may not need each other when they run."""
    (planted / PACKAGE / "registry.py").write_text("from vllm_ir.dispatch import select", encoding="utf-8")
    (planted / PACKAGE / "dispatch.py").write_text("from vllm_ir.registry import get", encoding="utf-8")
    assert violations(planted, levels) == [
        "dispatch imports itself over dispatch -> registry -> dispatch",
        "registry imports itself over registry -> dispatch -> registry",
    ]


def test_a_type_only_import_forms_no_cycle(planted: Path, levels: dict[str, int]) -> None:
    """A sideways import that only a type checker runs is no cycle."""
    (planted / PACKAGE / "registry.py").write_text("from vllm_ir.dispatch import select", encoding="utf-8")
    (planted / PACKAGE / "dispatch.py").write_text(
        "if TYPE_CHECKING:\n    from vllm_ir.registry import get", encoding="utf-8"
    )
    assert violations(planted, levels) == []


def test_a_module_without_a_level_is_found(planted: Path, levels: dict[str, int]) -> None:
    """A new room needs a row first."""
    (planted / PACKAGE / "attic.py").write_text("", encoding="utf-8")
    assert violations(planted, levels) == ["vllm_ir.attic is not in the table"]
