"""Platforms by their names: what a name says, what it does not, and what is told of one that is none."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.errors import ConfigurationError, UnknownPlatform
from vllm_ir.platforms import BUILT_IN, Device, Platform, named_platform, platform_name
from vllm_ir.platforms.named import FORMS
from vllm_ir.plugins.shapes import CAPABILITY, GFX

CAPABILITIES = st.from_regex(CAPABILITY.pattern, fullmatch=True).filter(str.isascii)
ARCHITECTURES = st.from_regex(GFX.pattern, fullmatch=True)


@pytest.mark.parametrize(
    ("text", "name", "device_type", "capability", "gfx"),
    [
        ("cpu", "cpu", "cpu", None, None),
        ("cuda:9.0", "cuda", "cuda", (9, 0), None),
        (" CUDA:12.1 ", "cuda", "cuda", (12, 1), None),
        ("rocm:gfx942", "rocm", "cuda", None, "gfx942"),
        ("ROCm:gfx90a", "rocm", "cuda", None, "gfx90a"),
        ("xpu", "xpu", "xpu", None, None),
    ],
)
def test_what_a_name_says(
    text: str, name: str, device_type: str, capability: tuple[int, int] | None, gfx: str | None
) -> None:
    """One device of that kind, on a platform that answers as a detected one does."""
    platform = named_platform(text)
    assert (platform.name, platform.device_type, platform.count) == (name, device_type, 1)
    assert (platform.capability, platform.gfx) == (capability, gfx)
    assert platform.native_first_when_compiling
    assert not platform.is_out_of_tree()


def test_what_was_named_says_so() -> None:
    """Nobody takes it for this machine."""
    assert named_platform("cpu").named
    assert named_platform("cpu").describe()["named"] is True
    assert not Platform(name="cpu", device_type="cpu").named


def test_every_built_in_platform_has_an_example_that_is_right() -> None:
    """The error shows them, so they must work."""
    assert tuple(named_platform(each).name for each in FORMS) == BUILT_IN


def test_a_vendors_platform_is_known_by_its_name_alone() -> None:
    """What it wants is in its code, so it wants nothing here, and does not put native first."""
    platform = named_platform("npu", out_of_tree=("npu", "tpu"))
    assert (platform.name, platform.is_out_of_tree(), platform.count) == ("npu", True, 1)
    assert not platform.native_first_when_compiling
    assert platform.get_default_ir_op_priority(compiling=True) == {}


@pytest.mark.parametrize(
    ("text", "problem", "suggestion"),
    [
        ("cdua:9.0", "is no platform", "Did you mean 'cuda:9.0'?"),
        ("cuda", "lacks a compute capability", "cuda:9.0"),
        ("cuda:", "lacks a compute capability", "cuda:9.0"),
        ("cuda:90", "has '90' for a compute capability", "Did you mean 'cuda:9.0'?"),
        ("cuda:sm_90", "has 'sm_90' for a compute capability", "cuda:9.0"),
        ("rocm", "lacks an architecture", "rocm:gfx942"),
        ("rocm:mi300x", "has 'mi300x' for an architecture", "rocm:gfx942"),
        ("gfx942", "is no platform", "Did you mean 'rocm:gfx942'?"),
        ("cpu:avx2", "has 'avx2' behind the colon, and cpu takes nothing there", "cpu"),
        ("npu:2", "has '2' behind the colon, and npu takes nothing there", "npu"),
        ("npv", "is no platform", "Did you mean 'npu'?"),
        ("", "is empty", "cpu"),
    ],
)
def test_a_name_that_is_none(text: str, problem: str, suggestion: str) -> None:
    """The error says what is wrong, what there is, and how it is written."""
    with pytest.raises(UnknownPlatform) as caught:
        named_platform(text, out_of_tree=("npu",))
    error = caught.value
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(f"Platform {text!r} {problem} (platforms: cpu, cuda:9.0, rocm:gfx942, xpu, npu).")
    assert suggestion in str(error)
    assert (error.text, error.problem, error.known) == (text, problem, (*FORMS, "npu"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - made here


@given(CAPABILITIES)
def test_every_capability_that_a_manifest_may_need_can_be_named(capability: str) -> None:
    """And the name of what was named is the name, but for a leading zero."""
    platform = named_platform(f"cuda:{capability}")
    major, minor = platform.capability or (None, None)
    assert platform_name(platform) == f"cuda:{major}.{minor}"
    assert named_platform(platform_name(platform)).capability == platform.capability


@given(ARCHITECTURES)
def test_every_architecture_that_a_manifest_may_need_can_be_named(gfx: str) -> None:
    """And the name of what was named is the name."""
    assert platform_name(named_platform(f"rocm:{gfx}")) == f"rocm:{gfx}"


@given(st.text(max_size=12))
def test_any_text_is_a_platform_or_an_error_of_that_kind(text: str) -> None:
    """Whatever is typed."""
    try:
        platform = named_platform(text)
    except UnknownPlatform as caught:
        told = caught.text
    else:
        told = text if platform.name in BUILT_IN else platform.name
    assert told == text


@pytest.mark.parametrize(
    ("platform", "name"),
    [
        (
            Platform(name="cuda", device_type="cuda", devices=[Device("H100", (9, 0)), Device("A100", (8, 0))]),
            "cuda:9.0",
        ),
        (Platform(name="rocm", device_type="cuda", devices=[Device("MI300X", gfx="gfx942")]), "rocm:gfx942"),
        (Platform(name="cuda", device_type="cuda"), "cuda"),
        (Platform(name="cpu", device_type="cpu", devices=[Device("Some CPU")]), "cpu"),
        (Platform(name="npu", device_type="privateuseone"), "npu"),
    ],
)
def test_the_name_of_a_platform_that_was_found(platform: Platform, name: str) -> None:
    """Of its first device."""
    assert platform_name(platform) == name
