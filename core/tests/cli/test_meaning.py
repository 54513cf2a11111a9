"""Meanings read as text: found by the decorator, whatever it is called through, and never by running the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import vllm_ir
from vllm_ir.cli.meaning import read_meaning
from vllm_ir.plugins.manifest_file import read_manifest

OWN = Path(vllm_ir.__file__).with_name("vllm_ir_provider.toml")
SOURCE = '''"""Ops."""
raise SystemExit("imported")

@ir.register_op(activations=["x"])
def scale(x: Tensor, by: float = 2.0, *, late: bool = False) -> Tensor:
    """Return x times a number.

    Args:
        x: any shape.
    """
    return x * by

@register_op(name="shift")
def _shift(x, by=None): return x

@other
def scaled(x): return x
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a package that declares ops and cannot be imported."""
    folder = tmp_path / "pack_of_ops" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    (folder / "broken.py").write_text("register_op scale (", encoding="utf-8")
    (folder / "ops.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pack_of_ops"


def test_signature_doc_and_place(package: str) -> None:
    """Everything that a reader needs is in the text; a broken file beside it does not matter."""
    meaning = read_meaning("scale", package)
    assert meaning
    assert meaning.signature == "scale(x: Tensor, by: float = 2.0) -> Tensor"
    assert meaning.doc == "Return x times a number.\n\nArgs:\n    x: any shape."
    assert meaning.file.endswith("ops.py")
    assert meaning.line == 4
    assert meaning.source.startswith("@ir.register_op")
    assert meaning.source.endswith("return x * by")


def test_an_op_with_a_name_of_its_own(package: str) -> None:
    """The declared name counts, not the function's."""
    meaning = read_meaning("shift", package)
    assert meaning
    assert meaning.signature == "shift(x, by = None)"
    assert meaning.doc == ""
    assert read_meaning("_shift", package) is None


def test_what_is_not_declared_is_not_found(package: str) -> None:
    """Another decorator declares nothing, and a package that is not there has no files."""
    assert read_meaning("scaled", package) is None
    assert read_meaning("scale", "no_package_of_this_name") is None


@pytest.mark.parametrize("op", read_manifest(OWN.read_bytes(), str(OWN), reserved=()).adds_ops)
def test_every_op_of_the_core_is_found(op: str) -> None:
    """The core declares its ops in plain sight, each with a docstring."""
    meaning = read_meaning(op, "vllm_ir")
    assert meaning
    assert meaning.doc
    assert meaning.signature.startswith(f"{op}(")
