"""Whose a module is: read where it is the program's own, told by its version where it was installed."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

import pytest
from vllm_ir.origins import Origins

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder of a package `made_library` that is imported, without metadata beside it."""
    folder = tmp_path / "made_library"
    folder.mkdir()
    (folder / "__init__.py").touch()
    module = types.ModuleType("made_library")
    module.__path__ = [str(folder)]
    module.__file__ = str(folder / "__init__.py")
    monkeypatch.setitem(sys.modules, "made_library", module)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def install(library: Path, version: str) -> None:
    """Write the metadata that an installer leaves."""
    metadata = library.parent / f"made_library-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: made-library\nVersion: {version}\n")


def test_what_lies_in_a_source_tree_is_own(library: Path) -> None:
    """A program consists of several packages, of which none is installed."""
    assert library.is_dir()
    assert Origins("program").is_own("made_library.kernels")


def test_what_was_installed_is_not(library: Path) -> None:
    """Wherever the installer was told to put it; its version is in its metadata."""
    install(library, "1.5")
    origins = Origins("program")
    assert not origins.is_own("made_library.kernels")
    assert origins.version("made_library.kernels") == "1.5"


def test_a_version_that_the_package_states_goes_first(library: Path) -> None:
    """What is imported is what runs, whatever lies beside it by now."""
    install(library, "1.5")
    sys.modules["made_library"].__version__ = "1.4"  # type: ignore[attr-defined]
    assert Origins("program").version("made_library") == "1.4"


def test_the_module_itself_is_own_wherever_it_lies(library: Path) -> None:
    """What somebody asks about is read."""
    install(library, "1.5")
    assert Origins("made_library.kernels").is_own("made_library.kernels")
    assert not Origins("made_library.kernels").is_own("made_library.other")


@pytest.mark.parametrize("module", ["torch.nn.functional", "os.path", "builtins", "functools", "vllm_ir.op"])
def test_what_a_version_tells_is_never_read(module: str) -> None:
    """Neither the standard library, nor torch, nor the core, also where these are source trees."""
    assert not Origins("program").is_own(module)


def test_the_core_reads_its_own() -> None:
    """Natives of the core reach helpers of the core."""
    assert Origins("vllm_ir.ops.layernorm").is_own("vllm_ir.ops.layernorm")


def test_nothing_and_the_main_module_are_own() -> None:
    """A function made by `exec` has no module."""
    assert Origins(None).is_own(None)
    assert Origins("program").is_own("__main__")
    assert Origins("program").version(None) == ""
    assert Origins("program").version("os.path") == ""
    assert Origins("program").version("no_such_module") == ""
