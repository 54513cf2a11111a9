"""What a platform is: a name, a torch device type and the devices found; also the class that vendors derive from.

How the facts are found is left to `detection`; which kernel suits them is left to providers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import BadPlatform
from vllm_ir.names import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUILT_IN: Final = ("cpu", "cuda", "rocm", "xpu")
"""Names of the platforms that the core itself can detect."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Args:
        name: what its maker calls it.
        capability: CUDA compute capability as (major, minor), or None where there is no such thing.
        gfx: AMD architecture such as "gfx942", or None where there is no such thing.
    """

    name: str
    capability: tuple[int, int] | None = None
    gfx: str | None = None

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        capability = f"{self.capability[0]}.{self.capability[1]}" if self.capability else None
        return {"name": self.name, "capability": capability, "gfx": self.gfx}


class Platform:
    """What is on this machine. Vendors derive from it and set `name` and `device_type` on their class.

    Args:
        name: one of the built-in names, or the vendor's own; default: that of the class.
        device_type: torch device type of its tensors ("cuda" also on ROCm); default: that of the class.
        devices: every device this process may use; empty where none was found.
        torch_build: version and toolkit of the installed torch, as text.
        driver: version of the kernel driver, or None where it is not known.

    Raises:
        BadPlatform: the name or the device type is missing or no text.
        BadName: the name is not legal.
    """

    name: str = ""
    device_type: str = ""
    named: bool = False
    """Whether it was named and not found, so that nothing can be asked of it."""

    def __init__(
        self,
        *,
        name: str | None = None,
        device_type: str | None = None,
        devices: Sequence[Device] = (),
        torch_build: str = "unknown",
        driver: str | None = None,
    ) -> None:
        if name is not None:
            self.name = name
        if device_type is not None:
            self.device_type = device_type
        for field in ("name", "device_type"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise BadPlatform(
                    platform=type(self).__name__, field=field, got=repr(value), wanted="a text, not empty"
                )
        check_name(self.name, "Platform")
        self.devices: tuple[Device, ...] = tuple(devices)
        self.torch_build = torch_build
        self.driver = driver

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability of the first device."""
        return self.devices[0].capability if self.devices else None

    @property
    def gfx(self) -> str | None:
        """AMD architecture of the first device."""
        return self.devices[0].gfx if self.devices else None

    @property
    def device_name(self) -> str:
        """Name of the first device; the platform's own name where none was found."""
        return self.devices[0].name if self.devices else self.name

    @property
    def count(self) -> int:
        """How many devices this process may use."""
        return len(self.devices)

    @property
    def native_first_when_compiling(self) -> bool:
        """Whether `native` leads when Inductor compiles: it does wherever Inductor is the platform's compiler.

        True for the built-in platforms. A vendor whose compiler is Inductor sets it to True on the class.
        """
        return not self.is_out_of_tree()

    def is_cpu(self) -> bool:
        """Tell whether there is nothing but the CPU."""
        return self.name == "cpu"

    def is_cuda(self) -> bool:
        """Tell whether it is NVIDIA's."""
        return self.name == "cuda"

    def is_rocm(self) -> bool:
        """Tell whether it is AMD's."""
        return self.name == "rocm"

    def is_cuda_alike(self) -> bool:
        """Tell whether its tensors are on torch's `cuda` device: NVIDIA's or AMD's."""
        return self.name in ("cuda", "rocm")

    def is_xpu(self) -> bool:
        """Tell whether it is Intel's GPU."""
        return self.name == "xpu"

    def is_out_of_tree(self) -> bool:
        """Tell whether a distribution brought it."""
        return self.name not in BUILT_IN

    def get_default_ir_op_priority(self, compiling: bool = False) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        """Return the provider names in order for each op this platform has an opinion on; the built-in ones have none.

        Args:
            compiling: whether the priorities are for a graph that is being compiled.
        """
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the facts as values that JSON can hold."""
        return {
            "name": self.name,
            "device_type": self.device_type,
            "devices": [device.describe() for device in self.devices],
            "torch_build": self.torch_build,
            "driver": self.driver,
            "named": self.named,
        }

    def __repr__(self) -> str:
        capability = f" {self.capability[0]}.{self.capability[1]}" if self.capability else ""
        gfx = f" {self.gfx}" if self.gfx else ""
        return f"<{type(self).__name__} {self.name}{capability}{gfx}: {self.count} x {self.device_name}>"
