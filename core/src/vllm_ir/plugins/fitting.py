"""Whether this machine is one that a manifest names: platform, compute capability, architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vllm_ir.platforms import Device, Platform
    from vllm_ir.plugins.manifest import Need


def unmet(needs: Mapping[str, Need], platform: Platform) -> str | None:
    """Return what this machine is, where that is not what is needed; None where it fits.

    A need of the CPU is met everywhere: every machine has one, and an implementation for it is given no other tensors.
    Every visible device has to fit, since a kernel may be launched on any of them.

    Args:
        needs: by platform name.
        platform: the machine.
    """
    need = needs.get(platform.name)
    if need is None:
        return None if "cpu" in needs else platform.name
    if need.minimum is None and need.maximum is None and not need.gfx:
        return None
    if not platform.devices:
        return f"{platform.name} without a device"
    for index, device in enumerate(platform.devices):
        if not _fits(need, device):
            what = device.gfx or (".".join(map(str, device.capability)) if device.capability else "of unknown kind")
            return f"{platform.name} {what}" + ("" if platform.named else f" (device {index}, {device.name})")
    return None


def device_types(needs: Mapping[str, Need], platform: Platform) -> frozenset[str]:
    """Return the torch device types whose tensors an implementation with these needs may be given here."""
    types = {"cpu"} if "cpu" in needs else set[str]()
    if platform.name in needs:
        types.add(platform.device_type)
    return frozenset(types)


def foreign(needs: Mapping[str, Need], platform: Platform, tensors: str) -> str | None:
    """Return why an implementation with these needs is never given a call's tensors here; None where it may be.

    Args:
        needs: by platform name.
        platform: the machine.
        tensors: the torch device type that they are taken to be on.
    """
    types = device_types(needs, platform)
    if not types or tensors in types:  # a platform that only loading tells may be any
        return None
    taken = " or ".join("CPU" if each == "cpu" else each for each in sorted(types))
    return f"takes {taken} tensors only, and those of a call on {platform.name} are taken to be on its device"


def in_words(needs: Iterable[Need]) -> str:
    """Return needs as they are told to a reader: "cuda >=7.5 or rocm (gfx942)"."""
    return " or ".join(map(str, needs))


def _fits(need: Need, device: Device) -> bool:
    """Tell whether one device is what is needed; a device that does not tell is not."""
    if need.gfx and device.gfx not in need.gfx:
        return False
    if need.minimum is None and need.maximum is None:
        return True
    if device.capability is None:
        return False
    low, high = need.minimum or device.capability, need.maximum or device.capability
    return low <= device.capability <= high
