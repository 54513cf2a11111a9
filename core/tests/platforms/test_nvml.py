"""What NVML tells, what it refuses to tell, and which of its devices are visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from vllm_ir.platforms import Device, nvml

if TYPE_CHECKING:
    from core.tests.platforms.conftest import FakeNvml

H100, A100 = Device("NVIDIA H100", (9, 0)), Device("NVIDIA A100", (8, 0))


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        (None, (H100, A100)),
        ("1", (A100,)),
        (" 1 , 0 ", (A100, H100)),
        ("GPU-bbbb2222", (A100,)),
        ("GPU-bb", (A100,)),
        ("GPU-", ()),
        ("GPU-zzzz", ()),
        ("MIG-cccc", (A100,)),
        ("MIG-dddd", ()),
        ("1,nonsense,0", (A100,)),
        ("0,9,1", (H100,)),
    ],
)
def test_the_visible_devices(h100_and_a100: FakeNvml, visible: str | None, devices: tuple[Device, ...]) -> None:
    """Indices, identifiers, their beginnings and slices name devices; the first entry that names none ends the list."""
    assert nvml.read_nvidia(visible, lambda: h100_and_a100) == (devices, "570.86.15")


def test_no_library_is_no_device() -> None:
    """A machine without NVIDIA's driver."""
    assert nvml.read_nvidia(None, lambda: None) == ((), None)


def test_a_library_that_does_not_start_is_no_device(h100_and_a100: FakeNvml) -> None:
    """A driver that was updated under a running kernel refuses to start; no session is left open."""
    h100_and_a100.start = 18
    assert nvml.read_nvidia(None, lambda: h100_and_a100) == ((), None)
    assert h100_and_a100.open == 0


def test_a_library_that_cannot_count_is_no_device(h100_and_a100: FakeNvml) -> None:
    """The session is closed all the same."""
    h100_and_a100.countable = False
    assert nvml.read_nvidia(None, lambda: h100_and_a100)[0] == ()
    assert h100_and_a100.open == 0


def test_a_lost_device_is_left_out(h100_and_a100: FakeNvml) -> None:
    """A card that fell off the bus does not hide the others."""
    h100_and_a100.gpus[0].reachable = False
    assert nvml.read_nvidia(None, lambda: h100_and_a100)[0] == (A100,)


def test_a_device_without_a_capability_is_left_out(h100_and_a100: FakeNvml) -> None:
    """What has no compute capability runs no kernel."""
    h100_and_a100.gpus[1].capability = None
    assert nvml.read_nvidia(None, lambda: h100_and_a100)[0] == (H100,)


def test_a_device_without_a_name_or_identifier_has_plain_ones(h100_and_a100: FakeNvml) -> None:
    """Facts that only decorate may be missing."""
    h100_and_a100.gpus[0].name = h100_and_a100.gpus[0].uuid = None
    assert nvml.read_nvidia("0", lambda: h100_and_a100)[0] == (Device("NVIDIA GPU", (9, 0)),)


def test_loading_the_library_never_raises() -> None:
    """Where it is not installed the loader says None; where it is, it has the entry that starts it."""
    library = nvml.load_nvml()
    assert library is None or hasattr(library, "nvmlInit_v2")


def test_a_missing_library_file_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dynamic loader's error is the answer "not here"."""

    def refuse(name: str) -> None:
        """Fail as the dynamic loader does."""
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert nvml.load_nvml() is None
