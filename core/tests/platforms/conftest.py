"""Machines made by hand: sysfs and procfs trees, a `version.py`, and an NVML that answers from a list."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir.platforms import Sources

if TYPE_CHECKING:
    from pathlib import Path

OK, REFUSED = 0, 999


@dataclass
class FakeGpu:
    """One NVIDIA device; a `None` fact is one that NVML refuses to tell."""

    name: str | None
    capability: tuple[int, int] | None
    uuid: str | None
    reachable: bool = True


@dataclass
class FakeNvml:
    """Stands for the NVML library: same names, same calling convention, same return codes."""

    gpus: list[FakeGpu]
    slices: dict[str, int] = field(default_factory=dict)
    start: int = OK
    countable: bool = True
    driver: str = "570.86.15"
    open: int = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802 - the library's own name
        """Open a session."""
        self.open += self.start == OK
        return self.start

    def nvmlShutdown(self) -> int:  # noqa: N802
        """Close a session."""
        self.open -= 1
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        """Write the number of devices."""
        count._obj.value = len(self.gpus)
        return OK if self.countable else REFUSED

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        """Write a handle: the index, plus one, since zero is no pointer."""
        handle._obj.value = index.value + 1
        return OK if self.gpus[index.value].reachable else REFUSED

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        """Write the two halves of the compute capability."""
        capability = self.gpus[handle.value - 1].capability
        if capability is None:
            return REFUSED
        major._obj.value, minor._obj.value = capability
        return OK

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        """Write the name."""
        return _write(self.gpus[handle.value - 1].name, buffer, size)

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        """Write the identifier."""
        return _write(self.gpus[handle.value - 1].uuid, buffer, size)

    def nvmlSystemGetDriverVersion(self, buffer: Any, size: Any) -> int:  # noqa: N802
        """Write the driver's version."""
        return _write(self.driver, buffer, size)

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        """Write a handle to a slice: a hundred plus its card's."""
        if uuid.decode() not in self.slices:
            return REFUSED
        handle._obj.value = 100 + self.slices[uuid.decode()] + 1
        return OK

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: Any, card: Any) -> int:  # noqa: N802
        """Write the handle of the card that a slice is on."""
        card._obj.value = part.value - 100
        return OK


def _write(text: str | None, buffer: Any, size: Any) -> int:
    """Write a text as C does, or refuse."""
    if text is None:
        return REFUSED
    ctypes.memmove(buffer, text.encode() + b"\0", min(len(text) + 1, size.value))
    return OK


@dataclass
class Machine:
    """A machine below a folder; `sources` is what detection reads of it."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    nvml: FakeNvml | None = None
    with_torch: bool = True

    def write(self, path: str, text: str) -> None:
        """Write one file of a tree, such as "sys/class/drm/renderD128/device/vendor"."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def torch(self, version: str, *, cuda: str | None = None, hip: str | None = None, xpu: str | None = None) -> None:
        """Install a torch with the `version.py` that its wheels have."""
        lines = ["from typing import Optional", "", "__all__ = ['__version__', 'debug', 'cuda', 'hip', 'xpu']"]
        lines += [f"__version__ = {version!r}", "debug = False"]
        lines += [f"{name}: Optional[str] = {value!r}" for name, value in (("cuda", cuda), ("hip", hip), ("xpu", xpu))]
        self.write("torch/version.py", "\n".join(lines) + "\n")

    def amd(self, node: int, version: int, *, simd: int = 304, unique: int = 0, minor: int = 128) -> None:
        """Add a node of the KFD topology."""
        self.write(
            f"sys/class/kfd/kfd/topology/nodes/{node}/properties",
            f"cpu_cores_count 0\nsimd_count {simd}\ngfx_target_version {version}\n"
            f"unique_id {unique}\ndrm_render_minor {minor}\nhive_id -1\nbroken\n",
        )

    def intel(self, minor: int, device: str, vendor: str = "0x8086") -> None:
        """Add a render node."""
        self.write(f"sys/class/drm/renderD{minor}/device/vendor", f"{vendor}\n")
        self.write(f"sys/class/drm/renderD{minor}/device/device", f"{device}\n")

    @property
    def sources(self) -> Sources:
        """Where detection reads this machine."""
        version_file = self.root / "torch" / "version.py"
        return Sources(
            environ=self.environ,
            sysfs=self.root / "sys",
            procfs=self.root / "proc",
            version_file=lambda: version_file if self.with_torch else None,
            nvml=lambda: self.nvml,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Give a machine with nothing on it but a named CPU."""
    machine = Machine(tmp_path)
    machine.write(
        "proc/cpuinfo", "processor\t: 0\nmodel name\t: A Fast CPU\nprocessor\t: 1\nmodel name\t: A Fast CPU\n"
    )
    return machine


@pytest.fixture
def h100_and_a100() -> FakeNvml:
    """Give an NVML with two different cards."""
    return FakeNvml(
        [
            FakeGpu("NVIDIA H100", (9, 0), "GPU-aaaa1111"),
            FakeGpu("NVIDIA A100", (8, 0), "GPU-bbbb2222"),
        ],
        slices={"MIG-cccc": 1},
    )
