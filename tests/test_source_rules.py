"""House rules that a parser can see, over the sources and tests of every distribution."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Workspace

CEILING = 300
# Providers of other distributions: the core knows none of them, whatever they are called.
PROVIDERS = ("vllm_c", "triton", "triton_batch_invariant", "aiter", "cpu_c", "xpu_kernels", "first_provider")


def asserts(tree: ast.Module) -> Iterator[int]:
    """Yield the line of every `assert`: it vanishes under `python -O`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno


def prints(tree: ast.Module) -> Iterator[int]:
    """Yield the line of every use of `print`, and of every write to a standard stream."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            yield node.lineno
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"sys.stdout", "sys.stderr"}:
            yield node.lineno


def provider_names(tree: ast.Module) -> Iterator[int]:
    """Yield the line of every identifier or string, docstrings too, that names a provider."""
    word = re.compile(r"\b(vllm_ir_provider_)?(" + "|".join(PROVIDERS) + r")\b")
    for node in ast.walk(tree):
        texts = [
            getattr(node, field) for field in ("id", "attr", "arg", "name", "module", "value") if hasattr(node, field)
        ]
        if any(isinstance(text, str) and word.search(text) for text in texts):
            yield getattr(node, "lineno", 0)


def undocumented(tree: ast.Module) -> Iterator[int]:
    """Yield the line of every function without a sentence, and of a module that starts without one."""
    if tree.body and not ast.get_docstring(tree):
        yield 1
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(ast.unparse(mark).split(".")[-1] == "overload" for mark in node.decorator_list):
                continue
            sentence = (ast.get_docstring(node) or "").split("\n")[0].strip()
            if node.name.startswith("test_") and not sentence.endswith((".", "?", "`", ":")):
                yield node.lineno


def late_annotations(tree: ast.Module) -> Iterator[int]:
    """Yield 1 for a module with code that does not defer its annotations."""
    code = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
    deferred = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in code)
    if code and not deferred:
        yield 1


def effects_at_import(tree: ast.Module) -> Iterator[int]:
    """Yield the line of every bare call, loop or `with` at the top of a module: import only defines."""
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node.lineno
        if isinstance(node, (ast.For, ast.While, ast.With)):
            yield node.lineno


def unfinished(source: str) -> Iterator[int]:
    """Yield the line of every note that says a thing is not done."""
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"\b(TODO|FIXME|XXX)\b", line):
            yield number


def broken(files: list[Path], root: Path, rule: Callable[[ast.Module], Iterator[int]]) -> list[str]:
    """Return `file:line` for everything a rule finds."""
    return [
        f"{path.relative_to(root)}:{line}"
        for path in files
        for line in rule(ast.parse(path.read_text(encoding="utf-8")))
    ]


def is_test(path: Path, root: Path) -> bool:
    """Tell whether a file belongs to a test folder or is a script at the root."""
    parts = path.relative_to(root).parts
    return "tests" in parts or "src" not in parts


@pytest.fixture(scope="module")
def sources(workspace: Workspace) -> list[Path]:
    """Give every Python file that ships."""
    return [path for one in workspace.distributions for path in one.sources]


@pytest.fixture(scope="module")
def core(workspace: Workspace) -> list[Path]:
    """Give every Python file of the core."""
    return sorted((workspace.root / "core" / "src").rglob("*.py"))


def test_no_source_asserts(sources: list[Path], workspace: Workspace) -> None:
    """A user's mistake raises a class of its own, also under `python -O`."""
    assert broken(sources, workspace.root, asserts) == []


def test_only_the_command_lines_print(sources: list[Path], workspace: Workspace) -> None:
    """A library speaks through its logger; the probe's child process answers its parent on stdout."""
    silent = [path for path in sources if not {"cli", "probe.py"} & set(path.parts)]
    assert broken(silent, workspace.root, prints) == []


def test_the_core_names_no_provider_but_native(core: list[Path], workspace: Workspace) -> None:
    """Adding or dropping a provider never edits the core."""
    assert broken(core, workspace.root, provider_names) == []


def test_every_module_and_test_has_its_sentence(workspace: Workspace) -> None:
    """A reader learns from one sentence what a module is for and what a test holds."""
    files = [path for path in workspace.files if path.suffix == ".py"]
    assert broken(files, workspace.root, undocumented) == []


def test_every_module_defers_its_annotations(workspace: Workspace) -> None:
    """Annotations cost nothing at import and read the same on every Python."""
    files = [path for path in workspace.files if path.suffix == ".py"]
    assert broken(files, workspace.root, late_annotations) == []


# The door tells the runtime whom to ask for providers; declaring an op, its tolerances too, is the written exception.
EFFECTS = ("core/src/vllm_ir/__init__.py", "core/src/vllm_ir/ops")


def test_importing_a_module_only_defines(sources: list[Path], workspace: Workspace) -> None:
    """Nothing happens at import but definitions, the two written exceptions apart."""
    allowed = tuple(str(workspace.root / name) for name in EFFECTS)
    judged = [path for path in sources if path.name != "__main__.py" and not str(path).startswith(allowed)]
    assert broken(judged, workspace.root, effects_at_import) == []


def test_no_module_outgrows_the_ceiling(workspace: Workspace) -> None:
    """A module above 300 lines is two modules."""
    lengths = {
        str(path.relative_to(workspace.root)): len(path.read_text(encoding="utf-8").splitlines())
        for path in workspace.files
        if path.suffix == ".py" and "tests" not in path.parts
    }
    assert {name: length for name, length in lengths.items() if length > CEILING} == {}


def test_nothing_is_left_unfinished(workspace: Workspace) -> None:
    """What is not done is an issue, not a note in the code."""
    here = Path(__file__)
    files = [path for path in workspace.files if path.suffix in {".py", ".toml", ".md"} and path != here]
    found = [
        f"{path.relative_to(workspace.root)}:{line}"
        for path in files
        for line in unfinished(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (asserts, "def f(x):\n    assert x\n"),
        (prints, "def f():\n    print(1)\n"),
        (prints, "import sys\nout = sys.stdout\n"),
        (provider_names, "import vllm_ir_provider_triton\n"),
        (provider_names, "name = 'aiter'\n"),
        (provider_names, '"""Prefers cpu_c."""\n'),
        (undocumented, "x = 1\n"),
        (undocumented, '"""A module."""\ndef test_it():\n    pass\n'),
        (undocumented, '"""A module."""\ndef test_it():\n    """no sentence"""\n'),
        (late_annotations, '"""A module."""\nimport os\n'),
        (effects_at_import, "register()\n"),
        (effects_at_import, "for x in y:\n    x()\n"),
    ],
)
def test_each_rule_finds_what_is_planted(
    tmp_path: Path, rule: Callable[[ast.Module], Iterator[int]], planted: str
) -> None:
    """A rule that finds nothing in a planted fault would hold nothing."""
    (tmp_path / "planted.py").write_text(planted, encoding="utf-8")
    assert broken([tmp_path / "planted.py"], tmp_path, rule)


@pytest.mark.parametrize(
    ("rule", "fine"),
    [
        (asserts, "def f(x):\n    if not x:\n        raise ValueError\n"),
        (prints, "def f(printer):\n    printer.print_all()\n"),
        (provider_names, "native = 'native'\nwrapped = 'atriton'\n"),
        (undocumented, '"""A module."""\ndef test_it():\n    """It holds."""\n'),
        (undocumented, ""),
        (late_annotations, '"""A module with no code."""\n'),
        (effects_at_import, "@register_op\ndef f(): ...\nx = f()\n"),
    ],
)
def test_each_rule_passes_what_is_right(tmp_path: Path, rule: Callable[[ast.Module], Iterator[int]], fine: str) -> None:
    """A rule that cries at sound code would be switched off."""
    (tmp_path / "planted.py").write_text(fine, encoding="utf-8")
    assert broken([tmp_path / "planted.py"], tmp_path, rule) == []
