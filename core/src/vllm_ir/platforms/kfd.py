"""AMD devices from the KFD topology in sysfs, which knows them without starting the HIP runtime."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from vllm_ir.platforms.platform import Device
from vllm_ir.platforms.sysfs import numbered, read_line
from vllm_ir.platforms.visible import select

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One device with the identifier that a visibility list may use and its place in the topology."""

    node: int
    uuid: str
    device: Device


def read_amd(sysfs: Path, environ: Mapping[str, str]) -> tuple[tuple[Device, ...], str | None]:
    """Return the visible AMD devices and the driver version.

    Visibility is narrowed twice, as the stack does it: `ROCR_VISIBLE_DEVICES` first, then what HIP counts
    (`HIP_VISIBLE_DEVICES`, or `CUDA_VISIBLE_DEVICES` where that is not set).

    Args:
        sysfs: root of sysfs.
        environ: environment variables.
    """
    nodes = sysfs / "class" / "kfd" / "kfd" / "topology" / "nodes"
    override = environ.get("HSA_OVERRIDE_GFX_VERSION")
    gpus = [gpu for path in numbered(nodes) if (gpu := _read(path, sysfs, override)) is not None]
    for variable in ("ROCR_VISIBLE_DEVICES", _hip_variable(environ)):
        gpus = list(select(environ.get(variable), gpus, partial(_by_id, gpus)))
    return tuple(gpu.device for gpu in gpus), read_line(sysfs / "module" / "amdgpu" / "version")


def gfx_name(version: int) -> str:
    """Return the architecture's name for the kernel's number: 90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _hip_variable(environ: Mapping[str, str]) -> str:
    """Return the variable that HIP goes by."""
    return "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in environ else "CUDA_VISIBLE_DEVICES"


def _read(path: Path, sysfs: Path, override: str | None) -> _Gpu | None:
    """Return the facts of one node, or None where it is a CPU or belongs to another container."""
    try:
        lines = (path / "properties").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    facts = {key: int(value) for key, _, value in (line.partition(" ") for line in lines) if value.strip().isdigit()}
    if not facts.get("simd_count") or not facts.get("gfx_target_version"):
        return None
    gfx = _overridden(override) or gfx_name(facts["gfx_target_version"])
    render = sysfs / "class" / "drm" / f"renderD{facts.get('drm_render_minor', 0)}" / "device" / "product_name"
    return _Gpu(
        int(path.name), f"GPU-{facts.get('unique_id', 0):016x}", Device(read_line(render) or f"AMD {gfx}", gfx=gfx)
    )


def _overridden(text: str | None) -> str | None:
    """Return the architecture that `HSA_OVERRIDE_GFX_VERSION` puts in place of the real one, such as "9.4.2"."""
    parts = (text or "").split(".")
    if len(parts) != len(("major", "minor", "step")) or not all(part.isdigit() for part in parts):
        return None
    return gfx_name(int(parts[0]) * 10000 + int(parts[1]) * 100 + int(parts[2]))


def _by_id(gpus: list[_Gpu], token: str) -> _Gpu | None:
    """Return the device that `GPU-...` names, or None."""
    return next((gpu for gpu in gpus if gpu.uuid.lower() == token.lower()), None)
