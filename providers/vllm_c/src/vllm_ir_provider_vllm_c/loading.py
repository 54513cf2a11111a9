"""The kernels of this process: loaded once a device, started on torch's current stream, never loaded during a capture.

What is launched is decided in `geometry`; where cubins come from, in `cubins`. Importing this touches no device.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import torch

from vllm_ir_provider_vllm_c import cubins
from vllm_ir_provider_vllm_c.errors import CannotLoad, CannotStart, KernelError, NotWarm
from vllm_ir_provider_vllm_c.geometry import MOST_BLOCKS, dtype_name
from vllm_ir_provider_vllm_c.launcher import CupyLauncher
from vllm_ir_provider_vllm_c.variants import DTYPES, PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_ir_provider_vllm_c.geometry import Launch
    from vllm_ir_provider_vllm_c.launcher import Launcher
    from vllm_ir_provider_vllm_c.variants import Program

_LOADED: Final[dict[tuple[int, Program], Mapping[str, int]]] = {}
"""Handles of kernels by their expression, for each device and program that has been loaded."""

_LOCK: Final = threading.Lock()


class _Thread(threading.local):
    """What is known of the running thread.

    Attributes:
        entered: whether it has a CUDA context. Torch makes one current only where it switches devices or allocates.
    """

    entered = False


_THREAD: Final = _Thread()


@lru_cache(maxsize=1)
def launcher() -> Launcher:
    """Return what talks to the driver, made at the first call that needs it."""
    return CupyLauncher()


def architecture(device: int) -> str:
    """Return what NVRTC calls a device's architecture, such as "sm_90"."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def run(launch: Launch, device: torch.device) -> None:
    """Start a kernel on the current stream of a device; nothing is started for no rows.

    Raises:
        NotWarm: it is not loaded, and a CUDA graph is being captured.
        KernelError: it cannot be compiled, loaded or started, or there are more rows than a grid has blocks.
    """
    if not launch.blocks:
        return
    if launch.blocks > MOST_BLOCKS:
        msg = f"vllm_c: {launch.expression} needs {launch.blocks} blocks for so many rows; a grid has {MOST_BLOCKS}"
        raise KernelError(msg)
    index = device.index
    kernels = _LOADED.get((index, launch.program))
    if kernels is None:
        kernels = load(launch.program, index)
    if not _THREAD.entered:
        enter()
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001 - the public way makes an object of it first
    try:
        if torch.cuda.current_device() == index:
            launcher().start(kernels[launch.expression], launch, stream)
            return
        with torch.cuda.device(index):
            launcher().start(kernels[launch.expression], launch, stream)
    except RuntimeError as error:  # what CuPy's and torch's errors are
        raise CannotStart(
            kernel=launch.expression,
            arch=architecture(index),
            blocks=launch.blocks,
            threads=launch.threads,
            cause=repr(error),
        ) from error


def enter() -> None:
    """Give the running thread the context of torch's current device; afterwards torch keeps it right."""
    launcher().enter(torch.cuda.current_device())
    _THREAD.entered = True


def capturing(index: int) -> bool:
    """Tell whether a graph is captured on a device's current stream, or on that of torch's current device.

    A capture is spoiled by what its thread loads, on whichever device.
    """
    if torch.cuda.is_current_stream_capturing():
        return True
    with torch.cuda.device(index):
        return torch.cuda.is_current_stream_capturing()


def load(program: Program, index: int) -> Mapping[str, int]:
    """Load a program on a device, compiling it if no cache has it, and return its kernels' handles.

    Raises:
        NotWarm: a CUDA graph is being captured.
        KernelError: it cannot be compiled or loaded.
    """
    if capturing(index):
        raise NotWarm(program=program.name, device=f"cuda:{index}")
    with _LOCK:
        loaded = _LOADED.get((index, program))
        if loaded is not None:
            return loaded
        arch = architecture(index)
        cubin = cubins.fetch(program, arch)
        with torch.cuda.device(index):
            enter()
            try:
                module = launcher().load(cubin.code)
                loaded = {
                    expression: launcher().find(module, cubin.names[expression]) for expression in program.expressions
                }
            except (RuntimeError, KeyError) as error:
                raise CannotLoad(program=program.name, arch=arch, cause=repr(error)) from error
        _LOADED[index, program] = loaded
        return loaded


def warm_up(device: torch.device | None, dtypes: Sequence[torch.dtype]) -> None:
    """Compile and load every kernel for these dtypes on a device, so that no later call or capture waits for one.

    Args:
        device: where; None for torch's current CUDA device. One that is no CUDA device has nothing to warm up.
        dtypes: of the activations; empty for all. Dtypes without kernels are left out.

    Raises:
        KernelError: a program cannot be compiled or loaded.
    """
    if device is not None and device.type != "cuda":
        return
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    wanted = [dtype_name(dtype) for dtype in dtypes] or list(DTYPES)
    for program in PROGRAMS:
        if program.dtype in wanted and (index, program) not in _LOADED:
            load(program, index)
