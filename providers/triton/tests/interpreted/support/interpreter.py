"""Triton's interpreter in the place of a GPU: it runs planned launches on this CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import exactness
import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle
from vllm_ir_provider_triton import compiling
from vllm_ir_provider_triton.variants import NUMBERS

if TYPE_CHECKING:
    from vllm_ir_provider_triton.variants import Launch

ARCH = "sm_90"
WIDTHS = {"i32": (np.int32, tl.int32), "i64": (np.int64, tl.int64)}


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
        # 8-bit floats are written as their bits, as on a GPU.
        tensors = [each.view(torch.uint8) if each.element_size() == 1 else each for each in launch.tensors]
        program[launch.blocks,](*tensors, *numbers, *launch.variant.constants)

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
