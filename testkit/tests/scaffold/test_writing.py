"""Writing a distribution: whole or not at all, and good from the first minute."""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_testkit.errors import CannotWrite, FolderExists
from vllm_ir_testkit.scaffold.naming import Names
from vllm_ir_testkit.scaffold.writing import write, written

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir_testkit import TestManager

NAMES = Names("acme_sample")


def test_it_has_the_shape_of_its_siblings(tmp_path: Path) -> None:
    """pyproject, README, typed package with manifest and hooks, and tests."""
    folder = write(NAMES, tmp_path)
    package = f"src/{NAMES.package}"
    assert {str(path) for path in written(folder)} >= {
        "README.md",
        "pyproject.toml",
        f"{package}/__init__.py",
        f"{package}/hooks.py",
        f"{package}/kernels.py",
        f"{package}/py.typed",
        f"{package}/vllm_ir_provider.toml",
        "tests/test_conformance.py",
        "tests/test_hooks.py",
        "tests/test_kernels.py",
    }
    assert not [path for path in tmp_path.iterdir() if path != folder]


def test_every_file_can_be_read_as_what_it_is(tmp_path: Path) -> None:
    """Python parses, TOML loads, and no placeholder is left."""
    folder = write(NAMES, tmp_path)
    for path in written(folder):
        text = (folder / path).read_text(encoding="utf-8")
        assert "${" not in text
        if path.suffix == ".py":
            ast.parse(text)
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == "vllm-ir-provider-acme-sample"
    assert project["entry-points"]["vllm_ir.providers"] == {"acme_sample": f"{NAMES.package}.hooks"}
    manifest = folder / "src" / NAMES.package / "vllm_ir_provider.toml"
    assert list(read_manifest(manifest.read_bytes(), str(manifest)).providers) == ["acme_sample"]


def test_what_is_written_loads_and_conforms(
    tmp_path: Path, manager: TestManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hooks agree with the manifest, and every check that needs no compiler is green."""
    folder = write(Names("fresh_start"), tmp_path)
    monkeypatch.syspath_prepend(str(folder / "src"))
    record = manager.load("fresh_start", "vllm_ir_provider_fresh_start.hooks")
    assert record.failure is None
    report = manager.conformance(
        "fresh_start", checks=["manifest", "verdict", "predicate", "refusal", "values", "layout", "zero_tokens"]
    )
    assert report.clean, report.failed


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    """Nothing is overwritten."""
    folder = tmp_path / NAMES.distribution
    folder.mkdir()
    with pytest.raises(FolderExists, match="nothing was written"):
        write(NAMES, tmp_path)
    assert list(folder.iterdir()) == []


def test_a_place_that_is_none_is_refused(tmp_path: Path) -> None:
    """A missing folder, and a file in its place."""
    with pytest.raises(CannotWrite, match="is no folder"):
        write(NAMES, tmp_path / "missing")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CannotWrite):
        write(NAMES, tmp_path / "file")
