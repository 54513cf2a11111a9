"""What the render nodes tell of Intel's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms.drm import read_intel

if TYPE_CHECKING:
    from core.tests.platforms.conftest import Machine


@pytest.mark.parametrize(
    ("affinity", "wanted"),
    [
        (None, ["0x1", "0x2", "0x3"]),
        ("1", ["0x2"]),
        ("2,0", ["0x3", "0x1"]),
        ("0.0,0.1", ["0x1"]),
        ("", []),
        ("9", []),
    ],
)
def test_the_visible_devices(machine: Machine, affinity: str | None, wanted: list[str]) -> None:
    """The mask names devices; the tiles of one device are one device."""
    for minor, identifier in ((128, "0x1"), (129, "0x2"), (1000, "0x3")):
        machine.intel(minor, identifier)
    machine.intel(130, "0x9", vendor="0x10de")
    machine.write("sys/class/drm/renderDx/device/vendor", "0x8086\n")
    devices, _ = read_intel(machine.root / "sys", affinity)
    assert [device.name for device in devices] == [f"Intel GPU {identifier}" for identifier in wanted]


@pytest.mark.parametrize("module", ["xe", "i915"])
def test_the_driver_is_whichever_is_loaded(machine: Machine, module: str) -> None:
    """Old and new driver tell their version in the same place."""
    machine.intel(128, "0x1")
    machine.write(f"sys/module/{module}/version", "1.2.3\n")
    assert read_intel(machine.root / "sys", None)[1] == "1.2.3"


def test_a_device_without_an_identifier_is_unknown(machine: Machine) -> None:
    """A missing fact that only decorates is said to be missing."""
    machine.write("sys/class/drm/renderD128/device/vendor", "0x8086")
    assert read_intel(machine.root / "sys", None)[0][0].name == "Intel GPU unknown"


def test_no_folder_is_no_device(machine: Machine) -> None:
    """A machine without graphics."""
    assert read_intel(machine.root / "sys", None) == ((), None)
