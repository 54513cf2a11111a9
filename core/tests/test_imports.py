"""What importing the core costs and drags in: measured in fresh interpreters, never in this one."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "core" / "src" / "vllm_ir"
HEAVY = ("triton", "cupy", "torch._inductor", "torch._dynamo", "transformers", "vllm")
HAS_TORCH = find_spec("torch") is not None

FORBID = """
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ImportError("forbidden here: " + name)
sys.meta_path.insert(0, Forbid())
"""


def torch_free_rooms() -> set[str]:
    """Read from `docs/layers.md` the rooms that must not import torch."""
    rooms: set[str] = set()
    for row in (ROOT / "docs" / "layers.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if row.startswith("|") and cells[0].isdigit() and cells[3] == "no":
            rooms.update(cells[1].replace("`", "").split())
    return rooms


def torch_free_modules() -> list[str]:
    """Return the dotted name of every module in those rooms."""
    rooms, names = torch_free_rooms(), []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in rooms and parts[-1] != "__main__":
            names.append(".".join(["vllm_ir", *(part for part in parts if part != "__init__")]))
    return names


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


def test_the_rooms_that_must_not_import_torch_do_not() -> None:
    """Every torch-free module imports in an interpreter where torch cannot be imported."""
    names = torch_free_modules()
    assert {"vllm_ir", "vllm_ir.errors", "vllm_ir.names"} <= set(names)
    done = run(FORBID.format(forbidden={"torch"}) + "".join(f"import {name}\n" for name in names))
    assert done.returncode == 0, done.stderr


def test_the_hook_that_forbids_torch_works() -> None:
    """The interpreter of these tests does refuse torch, so the test above can fail."""
    done = run(FORBID.format(forbidden={"torch"}) + "import torch")
    assert "forbidden here: torch" in done.stderr


def test_importing_the_core_loads_nothing_outside_the_standard_library() -> None:
    """`import vllm_ir` is a door: no torch, no pluggy, no rich, no metadata walk."""
    done = run(
        "import sys; before = set(sys.modules); import vllm_ir\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    # Python 3.10 has tomllib under the name it had before it was in the standard library.
    assert set(done.stdout.split()) - {"tomli"} == {"vllm_ir"}, done.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch, which this interpreter has not")
def test_using_every_public_name_imports_no_provider_and_no_compiler() -> None:
    """Touching all of the door's names brings in torch, and nothing heavier that torch itself does not."""
    done = run(
        "import sys, torch; before = set(sys.modules); import vllm_ir\n"
        "for name in vllm_ir.__all__: getattr(vllm_ir, name)\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    assert done.returncode == 0, done.stderr
    new = done.stdout.split()
    assert "vllm_ir.op" in new
    assert [name for name in new if f"{name}.".startswith(tuple(f"{heavy}." for heavy in HEAVY))] == []
    assert [name for name in new if name.startswith("vllm_ir_")] == []
