"""Which platform this machine is to the installed torch: the build names the vendor, the vendor's facts the devices.

A build for a GPU on a machine without one is the CPU platform, and so is a GPU that the build cannot use.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_ir.platforms.cpuinfo import read_cpu
from vllm_ir.platforms.drm import read_intel
from vllm_ir.platforms.kfd import read_amd
from vllm_ir.platforms.nvml import load_nvml, read_nvidia
from vllm_ir.platforms.platform import Platform
from vllm_ir.platforms.torch_build import find_version_file, read_torch_build

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm_ir.platforms.platform import Device


@dataclass(frozen=True, slots=True)
class Sources:
    """Where facts are read; tests put trees and libraries of their own in place.

    Args:
        environ: environment variables, for the vendors' visibility lists.
        sysfs: root of sysfs.
        procfs: root of procfs.
        version_file: returns the path of torch's `version.py`, or None.
        nvml: returns the NVML library, or None.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    version_file: Callable[[], Path | None] = find_version_file
    nvml: Callable[[], Any | None] = load_nvml


def detect(sources: Sources | None = None) -> Platform:
    """Return the platform of this process; neither torch nor a GPU runtime is loaded for it.

    Args:
        sources: where to read; default: this machine.
    """
    sources = sources or Sources()
    build = read_torch_build(sources.version_file())
    name, device_type = "cpu", "cpu"
    devices: tuple[Device, ...] = ()
    driver: str | None = None
    if build.cuda:
        name, device_type = "cuda", "cuda"
        devices, driver = read_nvidia(sources.environ.get("CUDA_VISIBLE_DEVICES"), sources.nvml)
    elif build.hip:
        name, device_type = "rocm", "cuda"
        devices, driver = read_amd(sources.sysfs, sources.environ)
    elif build.xpu:
        name, device_type = "xpu", "xpu"
        devices, driver = read_intel(sources.sysfs, sources.environ.get("ZE_AFFINITY_MASK"))
    if not devices:
        name, device_type, devices, driver = "cpu", "cpu", (read_cpu(sources.procfs),), None
    return Platform(name=name, device_type=device_type, devices=devices, torch_build=str(build), driver=driver)
