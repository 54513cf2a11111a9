"""A platform by its name, as a user types it: `cuda:9.0`, `rocm:gfx942`. One machine can so be asked about another.

What a name does not say is not known here, and nothing is looked up on this machine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vllm_ir.errors import UnknownPlatform
from vllm_ir.platforms.platform import Device, Platform

if TYPE_CHECKING:
    from collections.abc import Collection

FORMS: Final = ("cpu", "cuda:9.0", "rocm:gfx942", "xpu")
"""One example of each built-in platform's name."""


class NamedPlatform(Platform):
    """A platform that was named and not found: its one device is what the name says of it, and it runs nothing."""

    named = True


@dataclass(frozen=True, slots=True)
class _Detail:
    """What stands behind the colon of a platform's name.

    Attributes:
        pattern: regular expression that the whole of it matches.
        wanted: the same in words.
        device_type: torch device type of the platform's tensors.
    """

    pattern: str | None
    wanted: str
    device_type: str


_DETAILS: Final = {
    "cpu": _Detail(None, "nothing", "cpu"),
    "cuda": _Detail(r"[0-9]{1,2}\.[0-9]", "a compute capability", "cuda"),
    "rocm": _Detail(r"gfx[0-9a-f]{3,5}", "an architecture", "cuda"),
    "xpu": _Detail(None, "nothing", "xpu"),
}


def named_platform(text: str, out_of_tree: Collection[str] = ()) -> NamedPlatform:
    """Return the platform of a name: `cpu`, `cuda:9.0` (compute capability), `rocm:gfx942`, `xpu`, or a vendor's.

    Of a vendor's platform only the name is known: its device type and the order it wants are in its own code.

    Args:
        text: the name; capitals and blanks around it do not matter.
        out_of_tree: names of the platforms that installed distributions bring.

    Raises:
        UnknownPlatform: no platform has that name, or what stands behind its colon is missing or not of its kind.
    """
    name, colon, detail = (part.strip() for part in text.strip().lower().partition(":"))
    if name in out_of_tree and not colon:
        return NamedPlatform(name=name, device_type=name, devices=(Device(f"a device of {name}"),))
    kind = _DETAILS.get(name)
    if kind is None or bool(colon) != (kind.pattern is not None) or not _matches(kind, detail):
        raise UnknownPlatform(
            text=text,
            problem=_problem(name, detail, kind, brought=name in out_of_tree),
            known=(*FORMS, *sorted(out_of_tree)),
        )
    return NamedPlatform(name=name, device_type=kind.device_type, devices=(_device(name, detail),))


def platform_name(platform: Platform) -> str:
    """Return the name by which `named_platform` finds a platform like this one; the first device counts.

    A GPU that does not tell its capability or architecture has the bare name, which `named_platform` refuses.
    """
    if platform.is_cuda() and platform.capability is not None:
        return f"cuda:{platform.capability[0]}.{platform.capability[1]}"
    if platform.is_rocm() and platform.gfx is not None:
        return f"rocm:{platform.gfx}"
    return platform.name


def _matches(kind: _Detail, detail: str) -> bool:
    """Tell whether what stands behind the colon is of its kind."""
    return kind.pattern is None or re.fullmatch(kind.pattern, detail) is not None


def _problem(name: str, detail: str, kind: _Detail | None, *, brought: bool) -> str:
    """Return what is wrong with a name, as the end of a sentence."""
    if brought or (kind is not None and kind.pattern is None):
        return f"has {detail!r} behind the colon, and {name} takes nothing there"
    if kind is None:
        return "is no platform" if name else "is empty"
    return f"has {detail!r} for {kind.wanted}" if detail else f"lacks {kind.wanted}"


def _device(name: str, detail: str) -> Device:
    """Return the device that a name describes."""
    if name == "cuda":
        major, _, minor = detail.partition(".")
        return Device(f"compute capability {detail}", capability=(int(major), int(minor)))
    if name == "rocm":
        return Device(f"architecture {detail}", gfx=detail)
    return Device(f"any {name.upper()}")
