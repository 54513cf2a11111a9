"""One shape for all siblings: what every distribution of the workspace carries and promises."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Distribution, Workspace


def entry_points(project: dict[str, Any]) -> dict[str, str]:
    """Return every entry point of a `[project]` table, scripts too, as `group: name -> value`."""
    groups: dict[str, dict[str, str]] = {
        "console_scripts": project.get("scripts", {}),
        **project.get("entry-points", {}),
    }
    return {f"{group}: {name}": value for group, names in groups.items() for name, value in names.items()}


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names that a module binds at its top."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def unresolved(value: str, source: Path) -> str | None:
    """Return why an entry point's value leads nowhere below `source`, without importing it."""
    module, _, attribute = value.partition(":")
    base = source.joinpath(*module.split("."))
    path = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    if path is None:
        return f"no module {module}"
    if attribute and attribute not in defined_names(ast.parse(path.read_text(encoding="utf-8"))):
        return f"no {attribute} in {module}"
    return None


def each(workspace: Workspace) -> list[Distribution]:
    """Return the distributions, at least core, the Transformers host and the example."""
    names = {one.project["name"] for one in workspace.distributions}
    wanted = {"vllm-ir", "vllm-ir-host-transformers", "vllm-ir-first-provider"}
    missing = wanted - names
    if missing:
        pytest.fail(f"no pyproject.toml for {sorted(missing)}")
    return list(workspace.distributions)


def test_every_package_ships_its_types(workspace: Workspace) -> None:
    """A user's type checker reads our annotations only where `py.typed` lies."""
    missing = [
        package.name for one in each(workspace) for package in one.packages if not (package / "py.typed").is_file()
    ]
    assert missing == []


def test_every_distribution_has_one_package_a_readme_and_tests(workspace: Workspace) -> None:
    """A reader who knows one distribution finds their way in all of them."""
    for one in each(workspace):
        assert len(one.packages) == 1, one.folder
        assert (one.folder / one.project["readme"]).read_text(encoding="utf-8").startswith("# "), one.folder
        assert list((one.folder / "tests").rglob("test_*.py")), one.folder


def test_every_entry_point_resolves(workspace: Workspace) -> None:
    """A dangling string is found here, not by the user who installed it."""
    found = {
        f"{one.project['name']} {name}": reason
        for one in each(workspace)
        for name, value in entry_points(one.project).items()
        if (reason := unresolved(value, one.folder / "src"))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("pack.hooks", None),
        ("pack", None),
        ("pack.hooks:main", None),
        ("pack.hook", "no module pack.hook"),
        ("pack.hooks:mian", "no mian in pack.hooks"),
    ],
)
def test_a_planted_dangling_entry_point_is_found(tmp_path: Path, value: str, reason: str | None) -> None:
    """The check sees a missing module and a missing attribute, and passes what is there."""
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "pack" / "hooks.py").write_text("def main() -> int: ...\n", encoding="utf-8")
    assert unresolved(value, tmp_path) == reason


def test_every_distribution_says_the_same_of_itself(workspace: Workspace) -> None:
    """Python range, license, build backend and version are one decision for the whole workspace."""
    said = {
        one.project["name"]: (
            one.project["requires-python"],
            one.project["license"],
            one.pyproject["build-system"]["build-backend"],
            one.project["version"],
        )
        for one in each(workspace)
    }
    assert set(said.values()) == {(">=3.10", "Apache-2.0", "hatchling.build", "0.1.0")}, said


def test_every_provider_lies_beside_its_manifest(workspace: Workspace) -> None:
    """A distribution with an entry point in `vllm_ir.providers` ships the static description with it."""
    for one in each(workspace):
        for value in one.project.get("entry-points", {}).get("vllm_ir.providers", {}).values():
            package = one.folder / "src" / value.split(".")[0]
            assert (package / "vllm_ir_provider.toml").is_file(), one.folder


def test_nothing_but_the_core_is_needed_by_the_core(workspace: Workspace) -> None:
    """The core depends on no sibling, and a sibling on the core alone."""
    names = {one.project["name"] for one in each(workspace)}
    for one in each(workspace):
        needed = {requirement.split(">")[0].split("[")[0] for requirement in one.project["dependencies"]} & names
        assert needed == (set() if one.project["name"] == "vllm-ir" else {"vllm-ir"}), one.folder
