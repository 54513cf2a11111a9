"""The door of the package: only names, and no torch until one is used."""

from __future__ import annotations

import subprocess
import sys

import pytest
import vllm_ir_host_transformers


def test_the_door_has_the_names_it_lists() -> None:
    """Every public name resolves, and `dir` shows them."""
    names = vllm_ir_host_transformers.__all__
    assert dir(vllm_ir_host_transformers) == sorted(names)
    assert all(getattr(vllm_ir_host_transformers, name) is not None for name in names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="nothing"):
        _ = vllm_ir_host_transformers.nothing


def test_importing_it_imports_neither_torch_nor_transformers() -> None:
    """`vllm-ir run --help` need not wait for them."""
    code = (
        "import sys, vllm_ir_host_transformers, vllm_ir_host_transformers.cli.run\n"
        "print(*{'torch', 'transformers', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
