"""The few lines between a planned launch and a driver: enter a device, load a cubin, find a kernel in it, start it.

CuPy's low-level binding of the driver is behind them; its own kernels and streams are not used, since torch's current
stream is meant. Whatever launches cheaper can take this place, and the tests put the CPU there.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vllm_ir_provider_vllm_c.geometry import Launch


class Launcher(Protocol):
    """What loads and starts kernels."""

    def enter(self, device: int) -> None:
        """Make a device's context current in this thread; a new thread has none."""

    def load(self, code: bytes) -> int:
        """Load a cubin into the current context and return the module's handle."""

    def find(self, module: int, name: str) -> int:
        """Return the handle of a kernel in a module."""

    def start(self, kernel: int, launch: Launch, stream: int) -> None:
        """Start a kernel on a stream of the current context; the arguments are copied before this returns."""


class CupyLauncher:
    """The driver, through CuPy."""

    __slots__ = ("_driver", "_runtime")

    def __init__(self) -> None:
        # Compiled modules, which no checker of types can read.
        self._driver: Any = import_module("cupy_backends.cuda.api.driver")
        self._runtime: Any = import_module("cupy_backends.cuda.api.runtime")

    def enter(self, device: int) -> None:
        """Make a device's context current in this thread; a new thread has none."""
        self._runtime.setDevice(device)

    def load(self, code: bytes) -> int:
        """Load a cubin into the current context and return the module's handle."""
        handle: int = self._driver.moduleLoadData(code)
        return handle

    def find(self, module: int, name: str) -> int:
        """Return the handle of a kernel in a module."""
        handle: int = self._driver.moduleGetFunction(module, name)
        return handle

    def start(self, kernel: int, launch: Launch, stream: int) -> None:
        """Start a kernel on a stream of the current context; the arguments are copied before this returns."""
        arguments = ctypes.c_char_p(launch.arguments)
        pointers = (ctypes.c_void_p * 1)(ctypes.cast(arguments, ctypes.c_void_p))
        x, y = launch.threads
        self._driver.launchKernel(kernel, launch.blocks, 1, 1, x, y, 1, 0, stream, ctypes.addressof(pointers), 0)
