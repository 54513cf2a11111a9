"""Whom vLLM tries where its user says nothing."""

from __future__ import annotations

import pytest
from vllm_ir.errors import UnknownProvider
from vllm_ir.isolation import isolated
from vllm_ir.landscape import Landscape
from vllm_ir.platforms import Platform
from vllm_ir_host_vllm.defaults import default_order

OURS = {"rms_norm": ("fast",)}
CPU = Platform(name="cpu", device_type="cpu")


class Vendors(Platform):
    """A platform of somebody else's."""

    name = "moon"
    device_type = "cpu"


def order(
    landscape: Landscape, *, compiling: bool = False, text: str | None = None, registered: tuple[str, ...] = ("fast",)
) -> list[str]:
    """Return the order of rms_norm in a process where `fast` and `slow` are registered."""
    from vllm_ir import ops  # noqa: F401 - the core's ops are there before the state is taken apart

    with isolated({"VLLM_IR_OP_PRIORITY": text} if text else {}, landscape=landscape) as state:
        op = state.registry.get("rms_norm")
        for provider in ("fast", "slow"):
            op.register_impl(provider)(op.declaration.native)
        return default_order(op, ["vendors", "native"], registered, state, compiling=compiling)


def test_a_distribution_comes_before_vllms_own_in_eager() -> None:
    """What is installed is used."""
    assert order(Landscape(CPU, provider_defaults={False: OURS})) == ["fast", "vendors", "native"]


def test_nothing_comes_before_vllms_own_when_inductor_compiles() -> None:
    """On a built-in platform native leads then, and vLLM's list says so itself."""
    found = Landscape(CPU, provider_defaults={False: OURS, True: OURS})
    assert order(found, compiling=True) == ["vendors", "native"]
    vendor = Landscape(Vendors(), provider_defaults={False: OURS, True: OURS})
    assert order(vendor, compiling=True) == ["fast", "vendors", "native"]


def test_an_out_of_tree_platform_goes_before_distributions() -> None:
    """The order of the layers is the one of vllm-ir."""
    found = Landscape(Vendors(), provider_defaults={False: OURS}, platform_defaults={False: {"rms_norm": ("slow",)}})
    assert order(found, registered=("fast", "slow")) == ["slow", "fast", "vendors", "native"]


def test_a_variable_goes_before_defaults_also_when_compiling() -> None:
    """An operator who names a provider gets it; one who names native gets that before vLLM's own."""
    assert order(Landscape(CPU), compiling=True, text="rms_norm=fast") == ["fast", "vendors", "native"]
    assert order(Landscape(CPU, provider_defaults={False: OURS}), text="rms_norm=native") == ["native", "vendors"]


def test_what_vllm_has_not_taken_is_left_out() -> None:
    """A list that names what vLLM's op does not have ends vLLM with a KeyError."""
    assert order(Landscape(CPU, provider_defaults={False: OURS}), registered=()) == ["vendors", "native"]


def test_a_name_that_nobody_provides_raises() -> None:
    """A variable's mistake is the operator's to mend."""
    with pytest.raises(UnknownProvider, match="VLLM_IR_OP_PRIORITY: provider 'fats'"):
        order(Landscape(CPU), text="rms_norm=fats")
