"""The kernels in Triton's interpreter, on CPU tensors, with the launches that a GPU would get.

These files are run by `test_interpreted.py` in a process of their own, in which TRITON_INTERPRET=1 stands before Triton
is imported; the flag changes what `@triton.jit` makes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "support"))

import exactness
from interpreter import Interpreter
from vllm_ir import ops
from vllm_ir_provider_triton import loading, predicates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

exactness.install()


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    """Put this CPU in the place of a GPU."""
    made = Interpreter()
    monkeypatch.setattr(loading, "run", made.run)
    monkeypatch.setattr(loading, "architecture", made.architecture)
    monkeypatch.setattr(predicates, "NEEDS_GPU", None)
    torch.manual_seed(7)
    return made


@pytest.fixture
def inexact() -> Iterator[None]:
    """Leave rounding to the interpreter."""
    exactness.uninstall()
    yield
    exactness.install()


@pytest.fixture
def native() -> Callable[..., Any]:
    """Give a function that runs an op's native function."""

    def run(op: str, *args: Any) -> Any:
        """Return what native gives."""
        return getattr(ops, op).impls["native"].impl_fn(*args)

    return run
