"""What the written pages claim: their pointers lead somewhere, and nothing of one machine got into them."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Workspace

# The hosts are put together from pieces, so that this file does not hold what it looks for.
MACHINE = re.compile(rf"(?<![\w.])(?:[/](?:work|root|Users/[A-Za-z]+)|{re.escape(str(Path.home()))})\b/?")
HOSTS = re.compile("|".join([r"files\.python" + "hosted", r"py" + r"pi\.org", r"download\." + r"pytorch\.org"]))
TEXT = {".py", ".md", ".toml", ".json", ".yml", ".yaml", ".cfg", ".txt", ".sh", ""}
LAW = re.compile(r"`([\w./-]+\.py)::(\w+)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")


def machine_marks(text: str) -> Iterator[str]:
    """Yield each path of one machine and each index host in a text."""
    for pattern in (MACHINE, HOSTS):
        for match in pattern.finditer(text):
            yield match.group()


def lost_laws(page: str, root: Path) -> list[str]:
    """Return each `path::test` of a page that names no test function."""
    lost = []
    for path, name in LAW.findall(page):
        file = root / path
        tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
        if not any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree)):
            lost.append(f"{path}::{name}")
    return lost


def unexplained_ignores(pyproject: str) -> list[str]:
    """Return each line of the lint ignores that carries no reason after `#`, nor stands below one of its own."""
    lint = pyproject.partition("[tool.ruff.lint]")[2].partition("[tool.ruff.lint.pydocstyle]")[0].splitlines()
    pairs = zip(["", *lint], lint, strict=False)
    bare = [
        (above, line) for above, line in pairs if re.search(r'"[A-Z]+\d+"', line) and not re.search(r"#\s*\w+", line)
    ]
    return [line.strip() for above, line in bare if not above.lstrip().startswith("#")]


def unexplained_noqas(source: str) -> list[str]:
    """Return each `noqa` or `type: ignore` of a source that names no code."""
    return re.findall(r"#\s*noqa(?!: ?[A-Z]+\d+).*|#\s*type: ignore(?!\[).*", source)


def test_no_file_holds_a_path_of_one_machine_or_an_index_host(workspace: Workspace) -> None:
    """A clone works anywhere, with the package index its user has configured."""
    found = {
        str(path.relative_to(workspace.root)): marks
        for path in workspace.files
        if path.suffix in TEXT and path.name != "LICENSE"
        if (marks := sorted(set(machine_marks(path.read_text(encoding="utf-8")))))
    }
    assert found == {}


@pytest.mark.parametrize("planted", ["cd {slash}work/main", "{slash}root/x", "(https://py{nothing}pi.org)"])
def test_a_planted_machine_path_is_found(planted: str) -> None:
    """The patterns see what they are meant to see."""
    assert list(machine_marks(planted.format(slash="/", nothing="")))


def test_every_law_names_a_test_that_exists(workspace: Workspace) -> None:
    """A law without its test is a wish."""
    page = (workspace.root / "docs" / "laws.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith(("| law", "|--"))]
    assert rows
    assert [row for row in rows if not LAW.search(row)] == []
    assert lost_laws(page, workspace.root) == []


def test_a_law_that_points_nowhere_is_found(workspace: Workspace) -> None:
    """The check sees a missing file and a missing function."""
    page = "`tests/gone.py::test_it` `tests/test_documents.py::test_gone` `tests/test_documents.py::lost_laws`"
    assert lost_laws(page, workspace.root) == ["tests/gone.py::test_it", "tests/test_documents.py::test_gone"]


def test_every_link_between_pages_leads_somewhere(workspace: Workspace) -> None:
    """A relative link names a file of the repository."""
    found = [
        f"{page.relative_to(workspace.root)}: {link}"
        for page in workspace.files
        if page.suffix == ".md"
        for link, _ in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert found == []


def test_every_page_in_docs_is_reached_from_the_readme(workspace: Workspace) -> None:
    """README's table of documents is complete."""
    readme = (workspace.root / "README.md").read_text(encoding="utf-8")
    pages = [path for path in workspace.files if path.parent == workspace.root / "docs" and path.suffix == ".md"]
    assert [page.name for page in pages if f"docs/{page.name}" not in readme] == []


def test_every_lint_exclusion_has_its_reason(workspace: Workspace) -> None:
    """All rules are on; what is off says why, and a single line names the rule it silences."""
    assert unexplained_ignores((workspace.root / "pyproject.toml").read_text(encoding="utf-8")) == []
    here = __name__.rpartition(".")[2] + ".py"
    found = {
        str(path.relative_to(workspace.root)): lines
        for path in workspace.files
        if path.suffix == ".py" and path.name != here
        if (lines := unexplained_noqas(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_lint_exclusion_without_a_reason_is_found() -> None:
    """The check sees a bare code, a bare noqa and a bare type ignore."""
    page = '[tool.ruff.lint]\nignore = [\n  "S101",\n  "D203", # one school\n]\n[tool.ruff.lint.pydocstyle]\n'
    assert unexplained_ignores(page) == ['"S101",']
    assert len(unexplained_noqas("x = 1  # noqa\ny = 2  # type: ignore\nz = 3  # noqa: E501\n")) == 2


def test_the_changelog_is_sentences_under_versions(workspace: Workspace) -> None:
    """Each entry is a sentence with a full stop under a version and one of the four headings."""
    lines = (workspace.root / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# Changelog"
    versions = [line for line in lines if line.startswith("## ")]
    assert versions
    assert all(re.fullmatch(r"## \d+\.\d+\.\d+( \(unreleased\))?", line) for line in versions)
    headings = {line for line in lines if line.startswith("### ")}
    assert headings <= {"### Added", "### Changed", "### Removed", "### Fixed"}
    entries = re.findall(r"^- (.*(?:\n  .*)*)", "\n".join(lines), flags=re.MULTILINE)
    assert entries
    assert [entry for entry in entries if not entry.endswith(".")] == []


def test_the_changelog_starts_with_the_version_that_ships(workspace: Workspace) -> None:
    """A release without its entry cannot be made."""
    page = (workspace.root / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", page, flags=re.MULTILINE)
    assert newest
    assert {one.project["version"] for one in workspace.distributions} == {newest.group(1)}


def test_every_decision_says_what_why_and_what_else(workspace: Workspace) -> None:
    """A decision is numbered without gaps and has its three parts."""
    pages = workspace.named("docs/decisions/*.md")
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for part in ("## Decision", "## Why", "## What else was considered"):
            assert part in text, page


def test_every_nox_session_is_described_in_one_sentence(workspace: Workspace) -> None:
    """`nox --list` reads like a table of contents."""
    tree = ast.parse((workspace.root / "noxfile.py").read_text(encoding="utf-8"))
    sessions = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("session" in ast.unparse(mark) for mark in node.decorator_list)
    ]
    assert len(sessions) > 5
    for session in sessions:
        sentence = ast.get_docstring(session) or ""
        assert sentence.endswith("."), session.name
        assert "\n" not in sentence, session.name


def test_ci_calls_the_second_command_of_the_readme(workspace: Workspace) -> None:
    """CI tests what the README tells a newcomer to type."""
    commands = readme_commands((workspace.root / "README.md").read_text(encoding="utf-8"))
    script = (workspace.root / ".ci" / "run").read_text(encoding="utf-8")
    assert commands[1] in script
    done = subprocess.run(["bash", "-n", ".ci/run"], cwd=workspace.root, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def readme_commands(readme: str) -> list[str]:
    """Return the lines of the README's first two code blocks that a newcomer types."""
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", readme, flags=re.DOTALL)
    lines = [line.removeprefix("$ ").strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")][:2]
