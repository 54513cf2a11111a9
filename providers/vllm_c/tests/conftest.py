"""The kernels on the CPU: the same sources and launches, each CUDA thread a fiber; and how results are compared.

What is missing for it is said by one skip. Hardware is decided here, too: `gpu` marks what needs an NVIDIA GPU.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops
from vllm_ir_provider_vllm_c import compiling, loading, variants

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir_provider_vllm_c.geometry import Launch

HARNESS = Path(__file__).parent / "harness"
SCHEDULES = range(5)
UNITS = {torch.bfloat16: 1, torch.float16: 2}
SHARES = {torch.bfloat16: 1e-4, torch.float16: 3e-4}
PLAIN = ("-O1", "-shared", "-fPIC")
# Contraction would round differently; NVRTC is told the same.
FLAGS = ("-std=c++17", "-ffp-contract=off", "-g1")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU and CuPy")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    here = Path(__file__).parent
    marked = [each for each in items if here in each.path.parents and each.get_closest_marker("gpu")]
    if marked and not torch.cuda.is_available():
        for each in marked:
            each.add_marker(pytest.mark.skip(reason=f"needs an NVIDIA GPU; torch {torch.__version__} sees none"))


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Return what this machine lacks to run the kernels on its CPU, or None."""
    if os.uname().machine != "x86_64":
        return f"the fibers are for x86-64, this is {os.uname().machine}"
    if shutil.which("g++") is None:
        return "g++ is not installed"
    try:
        folders = compiling.include_folders()
    except ImportError as error:
        return f"{error}; pip install 'vllm-ir-provider-vllm-c[test]'"
    return None if (folders[0] / "crt").is_dir() else "the headers of the wheel nvidia-cuda-crt are not there"


@dataclass(frozen=True)
class Harness:
    """Builds the sources for the CPU.

    Args:
        folder: where builds go, one folder each.
    """

    folder: Path

    def build(
        self,
        name: str,
        flags: tuple[str, ...],
        programs: tuple[variants.Program, ...] = variants.PROGRAMS,
        change: Callable[[str, str], str] | None = None,
        door: str = "harness.cpp",
    ) -> Path:
        """Return a shared library or a program with the kernels.

        Args:
            name: of the build.
            flags: for the compiler.
            programs: which kernels; fewer build faster.
            change: from the name and text of a source to the text that is compiled.
            door: the file of the harness through which Python or a sanitizer comes.
        """
        reason = missing()
        if reason is not None:
            pytest.skip(f"the kernels cannot run on this CPU: {reason}")
        place, made = self.folder / name, self.folder / name / "kernels"
        if made.is_file():
            return made
        place.mkdir()
        for path in variants.CSRC.iterdir():
            text = path.read_text(encoding="utf-8")
            (place / path.name).write_text(change(path.name, text) if change else text, encoding="utf-8")
        sources = dict.fromkeys(f'#include "{each.source}.cu"\n' for each in programs)
        table = [
            f'VARIANT("{expression}", ({expression}), {variants.ARGUMENTS[each.source]})\n'
            for each in programs
            for expression in each.expressions
        ]
        (place / "sources.inc").write_text("".join(sources), encoding="utf-8")
        (place / "variants.inc").write_text("".join(table), encoding="utf-8")
        folders = [f"-I{each}" for each in (place, HARNESS)]
        folders += [word for each in compiling.include_folders() for word in ("-isystem", str(each))]
        command = ["g++", *FLAGS, *flags, *folders, str(HARNESS / door), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:4000]
        return made


class Cpu:
    """Runs planned launches on this CPU.

    Attributes:
        order: the schedule, one of five.
        last: whether of each launch the last block alone is run, as if the others had been.
        launches: what has been run.
    """

    def __init__(self, library: Path) -> None:
        self._run = ctypes.CDLL(str(library)).harness_run
        self.order = 0
        self.last = False
        self.launches: list[Launch] = []

    def __call__(self, launch: Launch, device: torch.device) -> None:
        """Run a launch, as `loading.run` does on a GPU."""
        assert device.type == "cpu"
        if not launch.blocks:
            return
        self.launches.append(launch)
        reason = ctypes.create_string_buffer(200)
        name, size = launch.expression.encode(), ctypes.c_size_t(len(reason))
        first = launch.blocks - 1 if self.last else 0
        failed = self._run(name, first, launch.blocks, *launch.threads, launch.arguments, self.order, reason, size)
        if failed:
            raise RuntimeError(reason.value.decode())


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """Give what builds the kernels for the CPU."""
    return Harness(tmp_path_factory.mktemp("harness"))


@pytest.fixture(scope="session")
def library(harness: Harness) -> Path:
    """Give the library of all kernels."""
    return harness.build("all", PLAIN)


@pytest.fixture
def cpu(library: Path, monkeypatch: pytest.MonkeyPatch) -> Cpu:
    """Put this CPU in the place of a GPU; a kernel then writes no memory but through its launch."""
    made = Cpu(library)
    monkeypatch.setattr(loading, "run", made)
    return made


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Start every test from one seed."""
    torch.manual_seed(7)


@pytest.fixture
def native() -> Callable[..., Any]:
    """Give a function that runs an op's native function."""

    def run(op: str, *args: Any) -> Any:
        """Return what native gives."""
        return getattr(ops, op).impls["native"].impl_fn(*args)

    return run


def _tensors(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return one result or several as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def _matches(op: str, got: Any, expected: Any) -> None:
    """Require native's values: bfloat16 1 element in 10,000 one unit off; float32 within the op's tolerance.

    float16 has three times as many, by two units: a float32 scale of a row that is one unit off, by another order of
    the sum, moves some 2 in 10,000 of its elements across the middle of two float16, and the weight widens the step.
    """
    for one, other in zip(_tensors(got), _tensors(expected), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.is_contiguous()
        if one.dtype == torch.float32:
            torch.testing.assert_close(one, other, equal_nan=True, **getattr(ops, op).get_tolerance(torch.float32))
            continue
        bits, others = (each.view(torch.int16).int() for each in (one, other))
        wrong = (bits != others) & ~(one.isnan() & other.isnan())
        assert not ((bits - others).abs() > UNITS[one.dtype])[wrong].any(), (
            f"{one[wrong][:3]} is not {other[wrong][:3]}"
        )
        allowed = SHARES[one.dtype] * one.numel()
        assert int(wrong.sum()) <= max(2, allowed), f"{int(wrong.sum())} of {one.numel()} differ"


@pytest.fixture
def matches() -> Callable[[str, Any, Any], None]:
    """Give the comparison of results with native's."""
    return _matches
