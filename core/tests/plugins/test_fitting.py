"""Whether a machine is one that a manifest names, over many machines and needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.platforms import Device, Platform
from vllm_ir.plugins.fitting import device_types, foreign, in_words, unmet
from vllm_ir.plugins.manifest import Need, Place

HERE = Place("made.toml", "platforms")
TYPES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu", "npu": "npu_device"}
CAPABILITIES = st.tuples(st.integers(7, 12), st.integers(0, 9))


def machine(name: str, *devices: Device) -> Platform:
    """Return a machine by hand."""
    return Platform(name=name, device_type=TYPES[name], devices=devices)


def cuda(*capabilities: tuple[int, int]) -> Platform:
    """Return a machine with NVIDIA cards."""
    return machine("cuda", *(Device("card", capability=capability) for capability in capabilities))


def need(
    name: str,
    minimum: tuple[int, int] | None = None,
    maximum: tuple[int, int] | None = None,
    gfx: tuple[str, ...] = (),
) -> dict[str, Need]:
    """Return the needs of one platform."""
    return {name: Need(HERE, name, minimum, maximum, gfx)}


@given(st.lists(CAPABILITIES, min_size=1, max_size=3), st.none() | CAPABILITIES, st.none() | CAPABILITIES)
def test_every_card_has_to_be_between_the_ends(
    cards: list[tuple[int, int]], minimum: tuple[int, int] | None, maximum: tuple[int, int] | None
) -> None:
    """Both ends count as inside, a missing one is no limit, and one card outside is enough to refuse."""
    if minimum and maximum and minimum > maximum:
        minimum, maximum = maximum, minimum
    fits = all((minimum or card) <= card <= (maximum or card) for card in cards)
    assert (unmet(need("cuda", minimum, maximum), cuda(*cards)) is None) == fits


def test_the_card_that_does_not_fit_is_named() -> None:
    """On a machine with several the reader has to know which."""
    assert unmet(need("cuda", (9, 0)), cuda((9, 0), (8, 6))) == "cuda 8.6 (device 1, card)"
    rocm = machine("rocm", Device("MI210", gfx="gfx90a"))
    assert unmet(need("rocm", gfx=("gfx942",)), rocm) == "rocm gfx90a (device 0, MI210)"
    assert unmet(need("rocm", gfx=("gfx942", "gfx90a")), rocm) is None


@pytest.mark.parametrize("name", ["cuda", "rocm", "xpu", "npu"])
def test_a_need_of_the_cpu_is_met_everywhere(name: str) -> None:
    """Every machine has one; its implementations are given CPU tensors only."""
    platform = machine(name)
    assert unmet(need("cpu"), platform) is None
    assert device_types(need("cpu"), platform) == {"cpu"}
    assert device_types({**need("cpu"), **need(name)}, platform) == {"cpu", TYPES[name]}
    assert device_types(need("cuda" if name != "cuda" else "rocm"), platform) == frozenset()


@pytest.mark.parametrize("name", TYPES)
def test_who_is_never_given_a_tensor_is_whom_its_device_types_leave_out(name: str) -> None:
    """A provider of the CPU takes nothing from a device; one of a platform that only loading tells may take any."""
    platform, device = machine(name), TYPES[name]
    refused = f"takes CPU tensors only, and those of a call on {name} are taken to be on its device"
    assert foreign(need("cpu"), platform, device) == (None if name == "cpu" else refused)
    assert foreign({**need("cpu"), **need(name)}, platform, device) is None
    assert foreign(need("cuda" if name != "cuda" else "rocm"), platform, device) is None


@pytest.mark.parametrize("wanted", ["cuda", "rocm", "xpu", "npu"])
@pytest.mark.parametrize("name", TYPES)
def test_another_platform_is_refused(wanted: str, name: str) -> None:
    """ROCm is not CUDA although torch calls its device so."""
    assert unmet(need(wanted), machine(name)) == (None if name == wanted else name)


def test_a_machine_that_does_not_tell_is_refused_where_it_matters() -> None:
    """A limit needs a fact to hold it against; no limit needs none."""
    unknown = machine("cuda", Device("mystery"))
    assert unmet(need("cuda", (7, 5)), unknown) == "cuda of unknown kind (device 0, mystery)"
    assert unmet(need("cuda", (7, 5)), machine("cuda")) == "cuda without a device"
    assert unmet(need("rocm", gfx=("gfx942",)), machine("rocm")) == "rocm without a device"
    assert unmet(need("cuda"), unknown) is None
    assert unmet(need("cuda"), machine("cuda")) is None


def test_needs_are_told_in_words() -> None:
    """What a reason says was wanted."""
    needs = {**need("cuda", (7, 5), (12, 0)), **need("rocm", gfx=("gfx942", "gfx950")), **need("cpu")}
    assert in_words(needs.values()) == "cuda >=7.5 <=12.0 or rocm (gfx942, gfx950) or cpu"
