"""Programs with a fault in their sources, and memory around what they read and write that is not anybody else's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch
from vllm_ir_provider_triton import programs

FOLDER = Path(programs.__file__).parent
PACKAGE = "vllm_ir_provider_triton.programs"
GUARD = 4096


def roomy(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return numbers with room on both sides, so that a fault reads and writes nothing that is not ours."""
    rows, size = sizes
    return torch.randn(rows * size * 2 + 2 * GUARD).to(dtype)[GUARD:-GUARD].view(rows, 2 * size)[:, :size]


def changed(name: str, file: str, old: str, new: str, folder: Path) -> Any:
    """Return a program whose sources have been changed, all of them loaded anew under another name."""
    package = f"{PACKAGE.replace('.', '_')}_{name.replace(' ', '_')}"
    for path in FOLDER.glob("*.py"):
        text = path.read_text(encoding="utf-8").replace(PACKAGE, package)
        if path.name == file:
            assert old in text, f"{name}: {old!r} is not in {file}"
            text = text.replace(old, new)
        (folder / path.name).write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(
        package, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules[package] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])
    return lambda program: getattr(importlib.import_module(f"{package}.{program}"), program)
