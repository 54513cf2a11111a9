"""What a platform answers of itself, and what a vendor may derive from it."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
from vllm_ir.errors import BadName, BadPlatform
from vllm_ir.platforms import Device, Platform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

H100 = Device("NVIDIA H100", capability=(9, 0))
MI300 = Device("AMD MI300X", gfx="gfx942")


class Npu(Platform):
    """A vendor's platform as the specification writes it: names on the class, priorities in a method."""

    name = "npu"
    device_type = "npu"

    def get_default_ir_op_priority(self, compiling: bool = False) -> Mapping[str, Sequence[str]]:  # noqa: ARG002
        """Return the vendor's own kernels first."""
        return {"rms_norm": ["npu_kernels", "native"]}


@pytest.mark.parametrize(
    ("name", "true"),
    [
        ("cpu", {"is_cpu"}),
        ("cuda", {"is_cuda", "is_cuda_alike"}),
        ("rocm", {"is_rocm", "is_cuda_alike"}),
        ("xpu", {"is_xpu"}),
        ("npu", {"is_out_of_tree"}),
    ],
)
def test_exactly_the_questions_that_fit_are_answered_yes(name: str, true: set[str]) -> None:
    """Each platform is what it is and nothing else."""
    platform = Platform(name=name, device_type="any")
    questions = ["is_cpu", "is_cuda", "is_rocm", "is_cuda_alike", "is_xpu", "is_out_of_tree"]
    assert {question for question in questions if getattr(platform, question)()} == true


def test_facts_are_those_of_the_first_device() -> None:
    """Capability, architecture and name are of device 0; the count is of all."""
    cuda = Platform(name="cuda", device_type="cuda", devices=[H100, H100])
    rocm = Platform(name="rocm", device_type="cuda", devices=[MI300])
    assert (cuda.capability, cuda.gfx, cuda.device_name, cuda.count) == ((9, 0), None, "NVIDIA H100", 2)
    assert (rocm.capability, rocm.gfx, rocm.device_name, rocm.count) == (None, "gfx942", "AMD MI300X", 1)


def test_a_platform_without_devices_answers_too() -> None:
    """Nothing known is an answer, not an exception."""
    platform = Platform(name="xpu", device_type="xpu")
    assert (platform.capability, platform.gfx, platform.device_name, platform.count) == (None, None, "xpu", 0)


def test_built_in_platforms_have_no_priorities_and_put_native_first_when_compiling() -> None:
    """The core names no provider; Inductor compiles for the built-in platforms."""
    for name in ("cpu", "cuda", "rocm", "xpu"):
        platform = Platform(name=name, device_type=name)
        assert platform.get_default_ir_op_priority(compiling=True) == {}
        assert platform.native_first_when_compiling


def test_a_vendor_derives_with_names_on_the_class() -> None:
    """A subclass needs no constructor, keeps its priorities, and decides itself whether native leads."""
    platform = Npu(devices=[Device("NPU 1")])
    assert (platform.name, platform.device_type, platform.device_name) == ("npu", "npu", "NPU 1")
    assert platform.is_out_of_tree()
    assert not platform.native_first_when_compiling
    assert platform.get_default_ir_op_priority() == {"rms_norm": ["npu_kernels", "native"]}

    class WithInductor(Npu):
        """The same vendor, who compiles with Inductor."""

        native_first_when_compiling = True

    assert WithInductor().native_first_when_compiling


@pytest.mark.parametrize(("field", "wrong"), [("name", ""), ("device_type", ""), ("device_type", 3)])
def test_a_platform_without_a_name_or_device_type_is_refused(field: str, wrong: object) -> None:
    """The error names the class, the field and what was got."""
    made = type("Vendor", (Platform,), {"name": "npu", "device_type": "npu", field: wrong})
    with pytest.raises(BadPlatform, match=f"Platform Vendor: {field} is {wrong!r}") as caught:
        made()
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args  # noqa: S301 - our own bytes


def test_a_platform_with_an_illegal_name_is_refused() -> None:
    """A platform's name stands in manifests, so it obeys their rules."""
    with pytest.raises(BadName, match="Platform name 'My NPU' is not legal"):
        Platform(name="My NPU", device_type="npu")


def test_facts_are_told_as_json_and_as_text() -> None:
    """What `--json` and a log line show."""
    platform = Platform(name="cuda", device_type="cuda", devices=[H100], torch_build="2.13.0", driver="570")
    assert json.loads(json.dumps(platform.describe())) == {
        "name": "cuda",
        "device_type": "cuda",
        "devices": [{"name": "NVIDIA H100", "capability": "9.0", "gfx": None}],
        "torch_build": "2.13.0",
        "driver": "570",
        "named": False,
    }
    assert repr(platform) == "<Platform cuda 9.0: 1 x NVIDIA H100>"
    assert repr(Platform(name="rocm", device_type="cuda", devices=[MI300])) == "<Platform rocm gfx942: 1 x AMD MI300X>"
