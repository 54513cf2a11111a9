"""The door: its names are sorted, listed, documented, and each leads somewhere; torch comes in only behind it."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import vllm_ir
from vllm_ir import errors, runtime

NEEDS_TORCH = True


def test_the_public_names_are_sorted_and_once() -> None:
    """`__all__` is what a reader scans."""
    for module in (vllm_ir, errors, vllm_ir.ops):
        names = list(module.__all__)
        assert names == sorted(set(names)), module.__name__


def test_dir_agrees_with_all() -> None:
    """What completion offers is what is public."""
    assert dir(vllm_ir) == vllm_ir.__all__


@pytest.mark.parametrize("name", vllm_ir.__all__)
def test_every_name_leads_somewhere(name: str) -> None:
    """And to the same thing each time, apart from the platform, which a provider may bring."""
    value = getattr(vllm_ir, name)
    assert value is not None
    if name != "current_platform":
        assert getattr(vllm_ir, name) is value


def test_the_names_that_a_checker_sees_are_those_that_exist() -> None:
    """The imports under TYPE_CHECKING are the public names, neither more nor fewer."""
    tree = ast.parse(Path(vllm_ir.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname or alias.name for node in imports for alias in node.names}
    seen |= {
        node.target.id for node in guarded.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert seen == set(vllm_ir.__all__)


@pytest.mark.parametrize("name", ["rms_nrom", "dispatch_", "IrOps", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    """With the module's name, as for every module."""
    with pytest.raises(AttributeError, match=f"module 'vllm_ir' has no attribute '{name}'"):
        getattr(vllm_ir, name)
    assert not hasattr(vllm_ir, name)


def test_ops_are_attributes_of_ops(state: runtime.Runtime) -> None:
    """Also ones that are registered later; a missing one is an AttributeError with a suggestion."""
    assert set(vllm_ir.ops.__all__) <= set(dir(vllm_ir.ops))
    assert dir(vllm_ir.ops) == sorted(state.registry.names)
    with pytest.raises(errors.UnknownOp, match="Did you mean 'rms_norm'") as caught:
        _ = vllm_ir.ops.rms_nrom
    assert isinstance(caught.value, AttributeError)
    assert not hasattr(vllm_ir.ops, "rms_nrom")


def test_every_error_is_exported_and_in_the_tree() -> None:
    """Each class of each subject's file is a name of `errors`, and stands in the tree of its docstring."""
    folder = Path(errors.__file__).parent
    for file in folder.glob("*.py"):
        if file.stem == "__init__":
            continue
        module = importlib.import_module(f"vllm_ir.errors.{file.stem}")
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__:
                assert getattr(errors, name) is value
                assert name in errors.__all__
                if file.stem in ("base", "configuration", "declaration", "selection") and name != "IrWarning":
                    assert name in (errors.__doc__ or ""), name


def test_the_door_opens_without_torch() -> None:
    """Names that need no torch come in an interpreter that has none."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import vllm_ir\n"
        "for name in ('IrOpPriorityConfig', 'KernelConfig', 'Platform', 'Unsupported', 'IrOpImpl', 'implements',"
        " 'errors', 'hookimpl', 'providers', 'load_providers', 'current_platform'):\n"
        "    getattr(vllm_ir, name)\n"
        "config, rest = vllm_ir.IrOpPriorityConfig.from_arguments(['--ir-op-priority.rms_norm=a', 'x'])\n"
        "print(dict(config), rest)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'rms_norm': ('a',)} ['x']"
