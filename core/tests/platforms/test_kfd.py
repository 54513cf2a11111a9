"""What the kernel's topology tells of AMD devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms.kfd import gfx_name, read_amd

if TYPE_CHECKING:
    from core.tests.platforms.conftest import Machine


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90402, "gfx942"),
        (90500, "gfx950"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (100300, "gfx1030"),
        (120001, "gfx1201"),
    ],
)
def test_the_kernel_number_is_read_as_a_name(version: int, name: str) -> None:
    """Major in decimal, minor and step in hexadecimal, as the compiler names them."""
    assert gfx_name(version) == name


def test_nodes_are_read_in_the_order_of_their_numbers(machine: Machine) -> None:
    """Node 10 comes after node 2; a CPU node and a foreign folder are none."""
    machine.amd(0, 0, simd=0)
    machine.amd(10, 90500, unique=10)
    machine.amd(2, 90402, unique=2)
    machine.write("sys/class/kfd/kfd/topology/nodes/notes/properties", "simd_count 1\ngfx_target_version 90402\n")
    devices, _ = read_amd(machine.root / "sys", {})
    assert [device.gfx for device in devices] == ["gfx942", "gfx950"]


def test_a_node_of_another_container_is_left_out(machine: Machine) -> None:
    """The kernel lets a container see the folder but not the facts."""
    machine.amd(1, 90402)
    (machine.root / "sys/class/kfd/kfd/topology/nodes/2").mkdir()
    assert len(read_amd(machine.root / "sys", {})[0]) == 1


def test_the_marketing_name_is_told_where_the_driver_knows_it(machine: Machine) -> None:
    """Otherwise the architecture is the name."""
    machine.amd(1, 90402, minor=130)
    machine.amd(2, 90402, minor=131)
    machine.write("sys/class/drm/renderD130/device/product_name", "AMD Instinct MI300X\n")
    devices, _ = read_amd(machine.root / "sys", {})
    assert [device.name for device in devices] == ["AMD Instinct MI300X", "AMD gfx942"]


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, ["gfx942", "gfx950", "gfx90a"]),
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, ["gfx90a", "gfx942"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000ff"}, ["gfx950"]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000FF"}, ["gfx950"]),
        ({"HIP_VISIBLE_DEVICES": "1"}, ["gfx950"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["gfx950"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["gfx942"]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["gfx90a"]),
        ({"HIP_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-unknown"}, []),
    ],
)
def test_the_visible_devices(machine: Machine, environ: dict[str, str], wanted: list[str]) -> None:
    """The runtime's list narrows first, and HIP counts what is left."""
    machine.amd(1, 90402, unique=1)
    machine.amd(2, 90500, unique=0xFF)
    machine.amd(3, 90010, unique=3)
    devices, _ = read_amd(machine.root / "sys", environ)
    assert [device.gfx for device in devices] == wanted


@pytest.mark.parametrize(("override", "wanted"), [("11.0.0", "gfx1100"), ("9.4.2", "gfx942"), ("nonsense", "gfx1036")])
def test_an_overridden_architecture_is_what_kernels_meet(machine: Machine, override: str, wanted: str) -> None:
    """ROCm reports what the variable says; a variable that says nothing changes nothing."""
    machine.amd(1, 100306)
    devices, _ = read_amd(machine.root / "sys", {"HSA_OVERRIDE_GFX_VERSION": override})
    assert devices[0].gfx == wanted


def test_no_topology_is_no_device(machine: Machine) -> None:
    """A machine without the driver."""
    assert read_amd(machine.root / "sys", {}) == ((), None)
