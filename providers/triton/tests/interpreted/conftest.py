"""The kernels in Triton's interpreter, on CPU tensors, with the launches that a GPU would get.

These files are run by `test_interpreted.py` in a process of their own, in which TRITON_INTERPRET=1 stands before Triton
is imported; the flag changes what `@triton.jit` makes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import exactness
import triton.language as tl
from triton.runtime.interpreter import TensorHandle
from vllm_ir import ops
from vllm_ir_provider_triton import compiling, loading, predicates
from vllm_ir_provider_triton.variants import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir_provider_triton.variants import Launch

ARCH = "sm_90"
WIDTHS = {"i32": (np.int32, tl.int32), "i64": (np.int64, tl.int64)}
exactness.install()


class Interpreter:
    """Runs planned launches on this CPU.

    Attributes:
        launches: what has been run.
        arch: whose launches are planned.
        change: from a program's name to another function, for seeded faults.
    """

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.arch = ARCH
        self.change: dict[str, Any] = {}

    def run(self, launch: Launch, device: torch.device) -> None:
        """Run a launch, as `loading.run` does on a GPU."""
        assert device.type == "cpu"
        if not launch.blocks:
            return
        self.launches.append(launch)
        assert launch.addresses == tuple(each.data_ptr() for each in launch.tensors)
        numbers = [
            self.number(value, kind)
            for value, kind in zip(launch.numbers, NUMBERS[launch.variant.program], strict=True)
        ]
        exactness.Sums.warps = launch.variant.warps
        program = self.change.get(launch.variant.program) or compiling.function(launch.variant.program)
        program[launch.blocks,](*launch.tensors, *numbers, *launch.variant.constants)

    @staticmethod
    def number(value: float, kind: str) -> Any:
        """Return a number of the width that the compiled kernel takes; the interpreter would guess one."""
        if kind == "fp32":
            return value
        width, dtype = WIDTHS[kind]
        return tl.tensor(TensorHandle(np.array([value], width), dtype), dtype)

    def architecture(self, device: torch.device) -> str:
        """Return whose launches are planned."""
        del device
        return self.arch


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
