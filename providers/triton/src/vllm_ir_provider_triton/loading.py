"""The kernels of this process: compiled and loaded once a device, started on torch's current stream.

Nothing is compiled or loaded while a graph is captured. What is launched is decided in `geometry`. Importing this
touches no device and imports no Triton.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from vllm_ir_provider_triton import compiling
from vllm_ir_provider_triton.errors import CannotCompile, NotWarm, TooManyRows

if TYPE_CHECKING:
    from vllm_ir_provider_triton.variants import Launch, Variant

MOST_BLOCKS: Final = 2**31 - 1

_LOADED: Final[dict[tuple[int, Variant], Any]] = {}
"""Compiled kernels, for each device and variant that has been loaded."""

_LOCK: Final = threading.Lock()


def architecture(device: torch.device) -> str:
    """Return what a device's architecture is called, such as "sm_90" or "gfx942"."""
    return _architecture(device.index)


@cache
def _architecture(index: int) -> str:
    """Return the architecture of a device by its index; asked once."""
    if torch.version.hip is not None:
        name: str = torch.cuda.get_device_properties(index).gcnArchName
        return name.partition(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def run(launch: Launch, device: torch.device) -> None:
    """Start a kernel on the current stream of a device; nothing is started for no rows.

    Raises:
        NotWarm: it is not loaded, and a graph is being captured.
        CannotCompile: it cannot be compiled or loaded.
        TooManyRows: there are more rows than a grid has programs.
    """
    if not launch.blocks:
        return
    if launch.blocks > MOST_BLOCKS:
        raise TooManyRows(program=str(launch.variant), blocks=launch.blocks, most=MOST_BLOCKS)
    index = device.index
    kernel = _LOADED.get((index, launch.variant))
    if kernel is None:
        kernel = load(launch.variant, index)
    stream: int = torch._C._cuda_getCurrentRawStream(index)  # noqa: SLF001 - the public way makes an object of it first
    arguments = (*launch.addresses, *launch.numbers, *launch.variant.constants)
    if torch.cuda.current_device() == index:
        kernel[launch.blocks, 1, 1](*arguments, stream=stream)
        return
    with torch.cuda.device(index):
        kernel[launch.blocks, 1, 1](*arguments, stream=stream)


def load(variant: Variant, index: int) -> Any:
    """Compile a variant for a device, unless Triton's cache has it, load it, and return the kernel.

    Raises:
        NotWarm: a graph is being captured.
        CannotCompile: it cannot be compiled or loaded.
    """
    if torch.cuda.is_current_stream_capturing():
        raise NotWarm(program=str(variant), device=f"cuda:{index}")
    with _LOCK:
        kernel = _LOADED.get((index, variant))
        if kernel is not None:
            return kernel
        with torch.cuda.device(index):
            try:
                kernel = compiling.compile_variant(variant)
                _ = kernel[1, 1, 1]  # loads it; the launch itself would be a call of this
            except Exception as error:
                cause = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise CannotCompile(
                    program=str(variant),
                    arch=_architecture(index),
                    compiler=f"Triton {compiling.version()}",
                    cause=cause,
                ) from error
        _LOADED[index, variant] = kernel
        return kernel
