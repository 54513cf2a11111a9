"""Intel GPUs from the DRM folder of sysfs, which knows them without starting Level Zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.platforms.platform import Device
from vllm_ir.platforms.sysfs import numbered, read_line
from vllm_ir.platforms.visible import select

if TYPE_CHECKING:
    from pathlib import Path

_INTEL: Final = "0x8086"


def read_intel(sysfs: Path, affinity: str | None) -> tuple[tuple[Device, ...], str | None]:
    """Return the visible Intel GPUs and the driver version.

    Args:
        sysfs: root of sysfs.
        affinity: text of `ZE_AFFINITY_MASK`, or None; of "0.1" only the device 0 counts, not its tile 1.
    """
    found = []
    for path in numbered(sysfs / "class" / "drm", "renderD"):
        if read_line(path / "device" / "vendor") == _INTEL:
            identifier = read_line(path / "device" / "device") or "unknown"
            found.append((path.name, Device(f"Intel GPU {identifier}")))
    if affinity is not None:
        affinity = ",".join(dict.fromkeys(part.strip().partition(".")[0] for part in affinity.split(",")))
    chosen = select(affinity, found, lambda _: None)
    driver = read_line(sysfs / "module" / "xe" / "version") or read_line(sysfs / "module" / "i915" / "version")
    return tuple(device for _, device in chosen), driver
