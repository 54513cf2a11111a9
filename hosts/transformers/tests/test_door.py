"""The door of the package: only names, and no torch until one is used."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import requires

import pytest
import vllm_ir_host_transformers
from packaging.requirements import Requirement


def test_the_door_has_the_names_it_lists() -> None:
    """Every public name resolves, and `dir` shows them."""
    names = vllm_ir_host_transformers.__all__
    assert dir(vllm_ir_host_transformers) == sorted(names)
    assert all(getattr(vllm_ir_host_transformers, name) is not None for name in names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="nothing"):
        _ = vllm_ir_host_transformers.nothing


@pytest.mark.parametrize("name", ["accelerate", "gguf", "transformers", "vllm-ir"])
def test_what_the_default_model_needs_comes_with_the_distribution(name: str) -> None:
    """Transformers asks for accelerate and gguf before it reads the model, which a fresh environment would not have."""
    needed = [Requirement(line) for line in requires("vllm-ir-host-transformers") or ()]
    assert [each.marker for each in needed if each.name == name] == [None]


def test_importing_it_imports_neither_torch_nor_transformers() -> None:
    """`vllm-ir run --help` need not wait for them."""
    code = (
        "import sys, vllm_ir_host_transformers, vllm_ir_host_transformers.cli.run\n"
        "print(*{'torch', 'transformers', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
