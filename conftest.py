"""What every test of the workspace gets: a clean environment, and only torch-free tests without torch.

Fixtures that only one distribution needs live in its own conftest.
"""

from __future__ import annotations

import ast
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

OURS = ("VLLM_IR_", "VLLM_BATCH_INVARIANT", "VLLM_LOGGING_LEVEL")
HAS_TORCH = find_spec("torch") is not None


def imports_torch(source: str) -> bool:
    """Tell whether a test file imports torch at its top, or declares `NEEDS_TORCH = True`."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import) and any(name.name.split(".")[0] == "torch" for name in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            return True
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "NEEDS_TORCH" for target in node.targets
        ):
            return True
    return False


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave test files, and folders whose conftest needs torch, out where there is none (the torch-free session)."""
    path = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if HAS_TORCH or path.suffix != ".py" or not path.is_file():
        return None
    return True if imports_torch(path.read_text(encoding="utf-8")) else None


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own settings, so that a test sees only the variables it sets."""
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
