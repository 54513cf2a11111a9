"""Default orders: who asks to stand in them, in which order, and who is left out with a reason."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_ir.config import IrOpPriorityConfig
from vllm_ir.errors import BadValue, DeniedByPolicy
from vllm_ir.landscape import Landscape
from vllm_ir.orders import defaults as wishes
from vllm_ir.platforms import Device, Platform
from vllm_ir.plugins.defaults import Dropped, Merged, of_distributions, of_platform
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir.plugins.records import DistributionRecord, Failure, ProviderRecord
from vllm_ir.priority import merge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OPS = ("rms_norm", "fused_add_rms_norm")
NORMS = dict.fromkeys(OPS, ("cuda", "rocm"))
PLATFORMS = {
    "cpu": Platform(name="cpu", device_type="cpu"),
    "cuda": Platform(name="cuda", device_type="cuda", devices=[Device("card", capability=(9, 0))]),
    "rocm": Platform(name="rocm", device_type="cuda", devices=[Device("card", gfx="gfx942")]),
    "xpu": Platform(name="xpu", device_type="xpu", devices=[Device("card")]),
}


def distribution(
    provider: str,
    *,
    rank: int = 0,
    eager: Mapping[str, Iterable[str]] | None = None,
    compiling: Mapping[str, Iterable[str]] | None = None,
    ops: Sequence[str] = OPS,
    name: str | None = None,
) -> DistributionRecord:
    """Return a distribution with one provider that a manifest written by hand describes."""
    text = (
        f'schema = 1\nprovider-api = "1"\nsummary = "x"\nrank = {rank}\n[providers.{provider}.platforms]\n'
        f"cpu = {{}}\ncuda = {{}}\nrocm = {{}}\nxpu = {{}}\nnpu = {{}}\n[providers.{provider}.ops]\n"
    )
    text += "".join(f"{op} = {{}}\n" for op in ops)
    for mode, table in (("eager", eager or {}), ("compiling", compiling or {})):
        text += f"[providers.{provider}.default.{mode}]\n"
        text += "".join(f"{op} = {list(platforms)!r}\n" for op, platforms in table.items())
    manifest = read_manifest(text.encode(), "made.toml")
    name = name or f"vllm-ir-provider-{provider}"
    of_provider = manifest.providers[provider]
    record = ProviderRecord(provider, name, "1", "loaded", ops=tuple(of_provider.ops), manifest=of_provider)
    return DistributionRecord(name, "1", "/", provider, "x", (record,), manifest=manifest)


AITER = distribution("aiter", rank=30, eager=dict.fromkeys(OPS, ("rocm",)))
VLLM_C = distribution("vllm_c", rank=20, eager=NORMS)
TRITON = distribution("triton", rank=10, eager=NORMS, compiling={})
XPU_KERNELS = distribution("xpu_kernels", rank=20, eager=dict.fromkeys(OPS, ("xpu",)))
EVERYBODY = (AITER, VLLM_C, TRITON, XPU_KERNELS)


def order(found: Sequence[DistributionRecord], platform: Platform, op: str, *, compiling: bool) -> list[str]:
    """Return the whole default order of an op, as the runtime makes it out of what discovery hands it."""
    landscape = Landscape(
        platform=platform,
        provider_defaults={compiling: of_distributions(found, platform, compiling=compiling).orders},
        platform_defaults={compiling: of_platform(platform, found, compiling=compiling).orders},
    )
    return [entry.provider for entry in merge(wishes(landscape, op, compiling=compiling)).entries]


# The specification's tables, op by op: what is left out of a list is not in the default order at all.
EAGER = {
    ("cpu", "everybody"): ["native"],
    ("cuda", "everybody"): ["vllm_c", "triton", "native"],
    ("rocm", "everybody"): ["aiter", "vllm_c", "triton", "native"],
    ("xpu", "everybody"): ["xpu_kernels", "native"],
    ("cpu", "without triton"): ["native"],
    ("cuda", "without triton"): ["vllm_c", "native"],
    ("rocm", "without triton"): ["aiter", "vllm_c", "native"],
    ("xpu", "without triton"): ["xpu_kernels", "native"],
    ("cuda", "nobody"): ["native"],
    ("rocm", "nobody"): ["native"],
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("platform", "installed"), EAGER)
def test_the_eager_table_of_the_specification(platform: str, installed: str, op: str) -> None:
    """Platform, op, eager: the order is the table's."""
    found = {"everybody": EVERYBODY, "without triton": (AITER, VLLM_C, XPU_KERNELS), "nobody": ()}[installed]
    assert order(found, PLATFORMS[platform], op, compiling=False) == EAGER[platform, installed]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_compiling_table_of_the_specification(platform: str, op: str) -> None:
    """Platform, op, compiling: native, since Inductor fuses it better than what it cannot see into."""
    assert order(EVERYBODY, PLATFORMS[platform], op, compiling=True) == ["native"]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_native_leads_when_compiling_whoever_else_asks(platform: str) -> None:
    """A provider that asks to be there when compiling stands behind native on a built-in platform."""
    asks = distribution("triton", compiling={"rms_norm": PLATFORMS})
    assert order([asks], PLATFORMS[platform], "rms_norm", compiling=True) == ["native", "triton"]


def test_an_op_without_defaults_is_native() -> None:
    """A new op that nobody's tables know runs all the same."""
    assert order(EVERYBODY, PLATFORMS["cuda"], "brand_new", compiling=False) == ["native"]


@given(st.permutations(EVERYBODY), st.lists(st.integers(-3, 3), min_size=4, max_size=4))
def test_rank_decides_and_ties_go_by_name(found: list[DistributionRecord], ranks: list[int]) -> None:
    """Whatever the order of the path: higher first, then the distribution's name."""
    made = [
        distribution(each.entry_point, rank=rank, eager={"rms_norm": ("cuda",)})
        for each, rank in zip(found, ranks, strict=True)
    ]
    wanted = sorted(
        zip(ranks, (each.name for each in made), (each.entry_point for each in made), strict=True),
        key=lambda item: (-item[0], item[1]),
    )
    merged = of_distributions(made, PLATFORMS["cuda"], compiling=False)
    assert merged.orders == {"rms_norm": tuple(provider for _, _, provider in wanted)}


def test_a_failed_provider_is_dropped_and_recorded() -> None:
    """The reason is that of its record; it is no error."""
    denied = DeniedByPolicy(distribution="d", provider="vllm_c", variable="V", value="*", allows=False)
    broken = distribution("vllm_c", eager={"rms_norm": ("cuda",)})
    record = DistributionRecord(
        broken.name, "1", "/", "vllm_c", "x", (broken.providers[0].refuse(denied),), manifest=broken.manifest
    )
    merged = of_distributions([record, TRITON], PLATFORMS["cuda"], compiling=False)
    assert merged.orders["rms_norm"] == ("triton",)
    assert merged.dropped == (Dropped("rms_norm", "vllm_c", broken.name, str(denied)),)
    assert merged.dropped[0].describe()["reason"] == str(denied)


def test_of_two_with_one_name_the_usable_one_stands() -> None:
    """Denying one of two distributions with a provider leaves the other's place, whichever comes first."""
    wanted = {"rms_norm": ("cpu",)}
    one, twin = distribution("fast", eager=wanted), distribution("fast", eager=wanted, name="dist-twin")
    denied = twin.fail(Failure("denied by policy", "It is denied.", fault=False))
    for records in ([one, denied], [denied, one]):
        assert of_distributions(records, PLATFORMS["cpu"], compiling=False).orders == {"rms_norm": ("fast",)}
    assert of_distributions([denied], PLATFORMS["cpu"], compiling=False).orders == {}


def test_an_op_that_is_refused_here_is_dropped_there_alone() -> None:
    """The provider stays where it can stand."""
    whole = distribution("triton", eager=NORMS)
    provider = whole.providers[0]
    partly = ProviderRecord(
        "triton", whole.name, "1", "loaded", OPS, refused_ops=(("rms_norm", "no kernel"),), manifest=provider.manifest
    )
    record = DistributionRecord(whole.name, "1", "/", "triton", "x", (partly,), manifest=whole.manifest)
    merged = of_distributions([record], PLATFORMS["cuda"], compiling=False)
    assert merged == Merged(
        {"fused_add_rms_norm": ("triton",)}, (Dropped("rms_norm", "triton", whole.name, "no kernel"),)
    )


def test_a_hook_at_run_time_stands_in_place_of_the_tables() -> None:
    """Also one that says nothing."""
    for said, wanted in (({"silu_and_mul": ["triton"]}, {}), ({"rms_norm": ("triton",)}, {"rms_norm": ("triton",)})):
        merged = of_distributions([TRITON], PLATFORMS["cuda"], compiling=False, at_run_time={TRITON.name: said})
        assert merged.orders == wanted
    assert of_distributions([TRITON], PLATFORMS["cuda"], compiling=False, at_run_time={TRITON.name: {}}).orders == {}


def expecting(name: str = "one", *, failure: Failure | None = None) -> DistributionRecord:
    """Return a distribution that leaves a place for `elsewhere` on xpu and, when compiling, on cuda."""
    text = (
        'schema = 1\nprovider-api = "1"\nsummary = "x"\nrank = 5\n'
        '[expects.elsewhere]\neager.rms_norm = ["xpu"]\ncompiling.rms_norm = ["cuda"]\n'
    )
    manifest = read_manifest(text.encode(), "made.toml")
    return DistributionRecord(name, "1", "/", name, "x", failure=failure, manifest=manifest)


def test_an_expected_provider_that_is_absent_keeps_its_place() -> None:
    """It is in the order of its platform and mode, where it is shown as absent; nothing was dropped."""
    merged = {
        (name, compiling): of_distributions([expecting()], platform, compiling=compiling)
        for name, platform in PLATFORMS.items()
        for compiling in (False, True)
    }
    kept = {key for key, each in merged.items() if each == Merged({"rms_norm": ("elsewhere",)})}
    assert kept == {("xpu", False), ("cuda", True)}
    assert all(each == Merged({}) for key, each in merged.items() if key not in kept)
    assert order([expecting()], PLATFORMS["xpu"], "rms_norm", compiling=False) == ["elsewhere", "native"]


def test_an_expected_provider_that_is_there_stands_once() -> None:
    """Its own rank decides where it is higher; where it cannot run it is dropped with its reason, as any other."""
    there = distribution("elsewhere", rank=9, eager={"rms_norm": ("xpu",)})
    assert order([expecting(), there], PLATFORMS["xpu"], "rms_norm", compiling=False) == ["elsewhere", "native"]
    broken = replace(there, providers=(there.providers[0].fail(Failure("broken import", "It broke.", fault=True)),))
    merged = of_distributions([expecting(), broken], PLATFORMS["xpu"], compiling=False)
    assert merged.orders == {}
    assert {each.reason for each in merged.dropped} == {"It broke."}


def test_a_distribution_that_is_refused_as_a_whole_expects_nobody() -> None:
    """A denied distribution has no say in what others run."""
    denied = expecting(failure=Failure("denied by policy", "It is denied.", fault=False))
    assert of_distributions([denied], PLATFORMS["xpu"], compiling=False) == Merged({})


class Npu(Platform):
    """A vendor's platform that says what a test wants it to say."""

    name = "npu"
    device_type = "npu"
    answer: Any = None

    def get_default_ir_op_priority(self, compiling: bool = False) -> Any:
        """Return the answer for the mode."""
        return self.answer(compiling) if callable(self.answer) else self.answer


class OldNpu(Npu):
    """The same as the specification writes it, without the argument."""

    def get_default_ir_op_priority(self) -> Any:  # type: ignore[override]
        """Return the answer."""
        return self.answer


@pytest.mark.parametrize("kind", [Npu, OldNpu])
def test_a_vendors_platform_goes_before_the_distributions(kind: type[Npu]) -> None:
    """Its list comes first, then those of the distributions, then native; an absent provider is dropped."""
    platform = kind()
    platform.answer = {"rms_norm": ["absent", "vllm_c", "native"]}
    others = distribution("triton", rank=99, eager={"rms_norm": ("npu",)})
    found = (VLLM_C, others)
    assert order(found, platform, "rms_norm", compiling=False) == ["vllm_c", "native", "triton"]
    dropped = of_platform(platform, found, compiling=False).dropped
    assert dropped == (Dropped("rms_norm", "absent", "platform npu", "it is not installed"),)


def test_a_vendors_platform_may_differ_when_compiling() -> None:
    """It is asked with the mode, and native does not lead unless it says so."""
    platform = Npu()
    platform.answer = lambda compiling: {"rms_norm": ["triton"] if compiling else ["vllm_c"]}
    assert order(EVERYBODY, platform, "rms_norm", compiling=True) == ["triton", "native"]
    assert order(EVERYBODY, platform, "rms_norm", compiling=False) == ["vllm_c", "native"]


def test_a_provider_for_every_op_is_dropped_where_it_lacks_one() -> None:
    """A platform names P for all ops and P implements only one: never an exception for a call of the other."""
    platform = Npu()
    platform.answer = IrOpPriorityConfig.with_default(["one"])
    found = (distribution("one", ops=("rms_norm",)), distribution("other", ops=("silu_and_mul",)))
    merged = of_platform(platform, found, compiling=False)
    assert merged.orders == {"rms_norm": ("one",)}
    assert merged.dropped == (
        Dropped("silu_and_mul", "one", "platform npu", "it has no implementation of silu_and_mul"),
    )
    assert order(found, platform, "silu_and_mul", compiling=False) == ["native"]


@pytest.mark.parametrize("answer", [None, ["rms_norm"], {"rms_norm": "triton"}, {1: ["triton"]}, {"rms_norm": 3}])
def test_a_platform_that_returns_no_table_is_told(answer: Any) -> None:
    """The error names the platform and what it returned."""
    platform = Npu()
    platform.answer = answer
    with pytest.raises(BadValue, match=r"platform 'npu'.*wanted a dict from op names to lists"):
        of_platform(platform, EVERYBODY, compiling=False)


def test_every_built_in_platform_and_mode_was_looked_at() -> None:
    """A platform that is added without its table fails here."""
    from vllm_ir.platforms import BUILT_IN

    assert set(PLATFORMS) == set(BUILT_IN) == {platform for platform, _ in EAGER}
    assert list(itertools.chain(*of_platform(PLATFORMS["cpu"], EVERYBODY, compiling=False).orders)) == []
