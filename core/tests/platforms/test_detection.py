"""Which platform a machine is, for every build of torch on every kind of machine."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms import Device, Platform, Sources, detect

if TYPE_CHECKING:
    from core.tests.platforms.conftest import FakeNvml, Machine


def facts(platform: Platform) -> tuple[str, str, tuple[Device, ...], str | None]:
    """Return what a test compares."""
    return platform.name, platform.device_type, platform.devices, platform.driver


CPU = ("cpu", "cpu", (Device("A Fast CPU"),), None)


def test_a_cpu_build_is_the_cpu_platform_whatever_else_is_there(machine: Machine, h100_and_a100: FakeNvml) -> None:
    """Cards that the installed torch cannot use are not the platform."""
    machine.torch("2.13.0+cpu")
    machine.nvml = h100_and_a100
    machine.amd(1, 90402)
    assert facts(detect(machine.sources)) == CPU
    assert detect(machine.sources).torch_build == "2.13.0+cpu"


def test_a_cuda_build_with_cards(machine: Machine, h100_and_a100: FakeNvml) -> None:
    """NVML tells names, capabilities and driver, and its session is closed again."""
    machine.torch("2.13.0+cu130", cuda="13.0")
    machine.nvml = h100_and_a100
    platform = detect(machine.sources)
    devices = (Device("NVIDIA H100", (9, 0)), Device("NVIDIA A100", (8, 0)))
    assert facts(platform) == ("cuda", "cuda", devices, "570.86.15")
    assert platform.torch_build == "2.13.0+cu130 (CUDA 13.0)"
    assert h100_and_a100.open == 0


@pytest.mark.parametrize("visible", ["", "-1", "7", "0,0"])
def test_a_cuda_build_without_a_visible_card_is_the_cpu_platform(
    machine: Machine, h100_and_a100: FakeNvml, visible: str
) -> None:
    """Hiding every card leaves the CPU, as it does for CUDA itself."""
    machine.torch("2.13.0+cu130", cuda="13.0")
    machine.nvml = h100_and_a100
    machine.environ = {"CUDA_VISIBLE_DEVICES": visible}
    assert facts(detect(machine.sources)) == CPU


def test_a_cuda_build_without_a_driver_is_the_cpu_platform(machine: Machine) -> None:
    """A machine without NVML has no usable card."""
    machine.torch("2.13.0+cu130", cuda="13.0")
    assert facts(detect(machine.sources)) == CPU


def test_a_rocm_build_with_cards(machine: Machine) -> None:
    """ROCm's tensors are on torch's `cuda` device, so that is the device type."""
    machine.torch("2.13.0+rocm7.0", hip="7.0.51831")
    machine.amd(0, 0, simd=0)
    machine.amd(1, 90402)
    machine.write("sys/module/amdgpu/version", "6.12.12\n")
    platform = detect(machine.sources)
    assert facts(platform) == ("rocm", "cuda", (Device("AMD gfx942", gfx="gfx942"),), "6.12.12")
    assert platform.torch_build == "2.13.0+rocm7.0 (HIP 7.0.51831)"


def test_a_rocm_build_without_cards_is_the_cpu_platform(machine: Machine) -> None:
    """A machine without the kernel's topology has no usable card."""
    machine.torch("2.13.0+rocm7.0", hip="7.0.51831")
    assert facts(detect(machine.sources)) == CPU


def test_an_xpu_build_with_cards(machine: Machine) -> None:
    """Intel's cards are found by their render nodes."""
    machine.torch("2.13.0+xpu", xpu="20250302")
    machine.intel(128, "0xe20b")
    platform = detect(machine.sources)
    assert facts(platform) == ("xpu", "xpu", (Device("Intel GPU 0xe20b"),), None)
    assert platform.torch_build == "2.13.0+xpu (XPU 20250302)"


def test_an_xpu_build_without_cards_is_the_cpu_platform(machine: Machine) -> None:
    """Another maker's render node is no Intel GPU."""
    machine.torch("2.13.0+xpu", xpu="20250302")
    machine.intel(128, "0x73df", vendor="0x1002")
    assert facts(detect(machine.sources)) == CPU


def test_without_torch_it_is_the_cpu_platform(machine: Machine) -> None:
    """Nothing says what torch could use, and the facts say so."""
    machine.with_torch = False
    assert facts(detect(machine.sources)) == CPU
    assert detect(machine.sources).torch_build == "not installed"


def test_detecting_this_machine_imports_no_torch() -> None:
    """A fresh interpreter that has detected its platform has neither torch nor CUDA loaded."""
    code = (
        "import sys; from vllm_ir.platforms import detect; p = detect(); assert p.count >= 1, p\n"
        "assert p.name in ('cpu', 'cuda', 'rocm', 'xpu'), p\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["False"], done.stderr


def test_the_default_sources_are_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The visibility lists come from the environment at the time of asking."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert Sources().environ["CUDA_VISIBLE_DEVICES"] == "5"
