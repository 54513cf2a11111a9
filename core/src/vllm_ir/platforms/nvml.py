"""NVIDIA devices from NVML, which knows them without starting the CUDA runtime.

NVML counts devices in PCI order; where cards of different kinds are mixed and `CUDA_DEVICE_ORDER` is not `PCI_BUS_ID`,
CUDA may count them in another order.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.platforms.platform import Device
from vllm_ir.platforms.visible import select

if TYPE_CHECKING:
    from collections.abc import Callable

_TEXT: Final = 96  # bytes; NVML's own largest buffer for a name, an identifier or a version


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One device with the identifier that a visibility list may use."""

    uuid: str
    device: Device


def load_nvml() -> Any | None:
    """Return the NVML library, or None where no NVIDIA driver is installed."""
    try:
        return ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None


def read_nvidia(visible: str | None, load: Callable[[], Any | None]) -> tuple[tuple[Device, ...], str | None]:
    """Return the visible NVIDIA devices and the driver version; nothing where NVML is missing or refuses.

    Args:
        visible: text of `CUDA_VISIBLE_DEVICES`, or None.
        load: returns the NVML library or None; tests hand in one of their own.
    """
    library = load()
    if library is None or library.nvmlInit_v2() != 0:
        return (), None
    try:
        gpus = [gpu for handle in _handles(library) if (gpu := _read(library, handle)) is not None]
        chosen = select(visible, gpus, lambda token: _by_id(library, gpus, token))
        return tuple(gpu.device for gpu in chosen), _text(library.nvmlSystemGetDriverVersion)
    finally:
        library.nvmlShutdown()


def _handles(library: Any) -> list[ctypes.c_void_p]:
    """Return a handle for each device that NVML still reaches."""
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    handles = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0:
            handles.append(handle)
    return handles


def _read(library: Any, handle: ctypes.c_void_p) -> _Gpu | None:
    """Return the facts of one device, or None where it has no compute capability to tell."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    if library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) != 0:
        return None
    name = _text(library.nvmlDeviceGetName, handle) or "NVIDIA GPU"
    uuid = _text(library.nvmlDeviceGetUUID, handle) or ""
    return _Gpu(uuid, Device(name, capability=(major.value, minor.value)))


def _text(function: Any, *handle: ctypes.c_void_p) -> str | None:
    """Return the text that an NVML function writes, or None where it refuses."""
    buffer = ctypes.create_string_buffer(_TEXT)
    if function(*handle, buffer, ctypes.c_uint(_TEXT)) != 0:
        return None
    return buffer.value.decode("utf-8", errors="replace")


def _by_id(library: Any, gpus: list[_Gpu], token: str) -> _Gpu | None:
    """Return the device that `GPU-...` (any unambiguous start) names, or the slice `MIG-...` with its card's facts."""
    if token.startswith("GPU-"):
        found = [gpu for gpu in gpus if gpu.uuid.startswith(token)]
        return found[0] if len(found) == 1 else None
    if not token.startswith("MIG-"):
        return None
    part, card = ctypes.c_void_p(), ctypes.c_void_p()
    if library.nvmlDeviceGetHandleByUUID(token.encode(), ctypes.byref(part)) != 0:
        return None
    if library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part, ctypes.byref(card)) != 0:
        return None
    gpu = _read(library, card)
    return None if gpu is None else _Gpu(token, gpu.device)
