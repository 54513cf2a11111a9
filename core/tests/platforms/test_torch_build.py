"""What torch's `version.py` says when it is read as text."""

from __future__ import annotations

import sys
import types
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms.torch_build import TorchBuild, find_version_file, read_torch_build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "build", "told"),
    [
        (
            "__version__ = '2.11.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n",
            TorchBuild("2.11.0+cu128", cuda="12.8"),
            "2.11.0+cu128 (CUDA 12.8)",
        ),
        ('__version__ = "2.14.0"\nhip = "7.0"\n', TorchBuild("2.14.0", hip="7.0"), "2.14.0 (HIP 7.0)"),
        ("__version__ = '2.13.0+cpu'\ncuda = ''\n", TorchBuild("2.13.0+cpu"), "2.13.0+cpu"),
        ("from ._version import *\n", TorchBuild("unknown"), "unknown"),
        ("    cuda = '13.0'\nnot python at all (", TorchBuild("unknown"), "unknown"),
    ],
)
def test_the_text_is_read_and_never_run(tmp_path: Path, text: str, build: TorchBuild, told: str) -> None:
    """Only assignments at the start of a line count, whatever else is in the file."""
    path = tmp_path / "version.py"
    path.write_text(text, encoding="utf-8")
    assert read_torch_build(path) == build
    assert str(build) == told


def test_no_file_and_a_missing_file_are_not_installed(tmp_path: Path) -> None:
    """Both mean that there is no torch to ask."""
    assert read_torch_build(None) == read_torch_build(tmp_path / "version.py") == TorchBuild()
    assert str(TorchBuild()) == "not installed"


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch, which this interpreter has not")
def test_the_installed_torch_is_read_as_it_reads_itself() -> None:
    """The text says what the module says."""
    import torch

    build = read_torch_build(find_version_file())
    assert build.version == torch.__version__
    assert (build.cuda, build.hip) == (torch.version.cuda, torch.version.hip)


@pytest.mark.parametrize("spec", [None, "missing"])
def test_a_torch_that_cannot_be_located_is_no_torch(monkeypatch: pytest.MonkeyPatch, spec: str | None) -> None:
    """A stand-in module without a specification, as some test suites put in place, is not read."""
    fake = types.ModuleType("torch")
    if spec is None:
        fake.__spec__ = None
        monkeypatch.setitem(sys.modules, "torch", fake)
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert find_version_file() is None
