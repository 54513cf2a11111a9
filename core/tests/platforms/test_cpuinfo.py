"""The CPU's name on the systems that tell it in different ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms.cpuinfo import read_cpu

if TYPE_CHECKING:
    from core.tests.platforms.conftest import Machine


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name : AMD EPYC 9654\n", "AMD EPYC 9654"),
        ("processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f\n", "Arm implementer 0x41 part 0xd4f"),
        ("processor : 0\nCPU part : 0xd4f\n", "Arm implementer ? part 0xd4f"),
        ("Hardware : BCM2835\nCPU part : 0xd08\n", "BCM2835"),
        ("cpu model : Loongson\n", "Loongson"),
    ],
)
def test_the_name_is_found(machine: Machine, text: str, name: str) -> None:
    """x86 writes a name, Arm writes numbers, boards write their own."""
    machine.write("proc/cpuinfo", text)
    assert read_cpu(machine.root / "proc").name == name


def test_a_silent_or_missing_file_gives_the_architecture(machine: Machine) -> None:
    """There is always a CPU."""
    machine.write("proc/cpuinfo", "nothing : \n")
    silent, missing = read_cpu(machine.root / "proc"), read_cpu(machine.root / "nowhere")
    assert silent == missing
    assert silent.name.endswith(" CPU")
