"""The verdict on every installed provider before anything of it is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from vllm_ir.environment import Environment
from vllm_ir.errors import UnknownAllowed
from vllm_ir.platforms import Device, Platform
from vllm_ir.plugins.requirements import Libraries
from vllm_ir.plugins.static import Survey, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.plugins.records import ProviderRecord

    from core.tests.plugins.conftest import Site

CPU = Platform(name="cpu", device_type="cpu", devices=[Device("CPU")])
H100 = Platform(name="cuda", device_type="cuda", devices=[Device("NVIDIA H100", capability=(9, 0))])
MI300 = Platform(name="rocm", device_type="cuda", devices=[Device("AMD MI300X", gfx="gfx942")])
EXPLODES = "raise SystemExit('imported although files tell enough')"


def look(platform: Platform = CPU, variables: dict[str, str] | None = None, **more: Any) -> Survey:
    """Survey the path of this process."""
    return survey(Environment.read(variables or {}), platform, **more)


def find(found: Survey, name: str = "fake") -> ProviderRecord:
    """Return the record of one provider."""
    (record,) = [each for each in found.providers if each.name == name]
    return record


def manifest(**parts: str) -> str:
    """Return the text of a manifest of the provider `fake` with its parts replaced."""
    text = {
        "head": 'schema = 1\nprovider-api = "1"\nsummary = "x"',
        "top": "",
        "platforms": "cpu = {}",
        "requires": "",
        "ops": "rms_norm = {}",
        "more": "",
    } | parts
    return (
        f"{text['head']}\n{text['top']}\n[providers.fake.platforms]\n{text['platforms']}\n"
        f"[providers.fake.requires]\n{text['requires']}\n[providers.fake.ops]\n{text['ops']}\n{text['more']}\n"
    )


def test_native_is_there_without_any_distribution() -> None:
    """The core describes itself by the same file as everybody else, also where it runs from its source tree."""
    record = find(look(installed=[]), "native")
    assert (record.distribution, record.state, record.failure) == ("vllm-ir", "not loaded", None)
    assert {"rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_and_mul", "rotary_embedding"} < set(record.ops)
    assert len(set(record.ops)) == len(record.ops)


@pytest.mark.parametrize("platform", [CPU, H100, MI300, Platform(name="npu", device_type="npu")])
def test_native_runs_on_every_platform(platform: Platform) -> None:
    """Also on one that the core has never heard of."""
    assert find(look(platform, installed=[]), "native").usable


def test_a_usable_provider_is_described_and_not_imported(site: Site) -> None:
    """All facts come from files; the module with the hooks would end the process."""
    site.provider(hooks=EXPLODES, version="2.1", ops=("rms_norm", "silu_and_mul"))
    found = look()
    record = find(found)
    assert (record.state, record.reason, record.version) == ("not loaded", None, "2.1")
    assert (record.ops, record.platforms, record.dtypes) == (("rms_norm", "silu_and_mul"), ("cpu",), None)
    (distribution,) = [each for each in found.distributions if each.name == record.distribution]
    assert distribution.entry_point == "fake"
    assert distribution.module == "vllm_ir_provider_fake.hooks"
    assert distribution.location == str(site.path.resolve())
    assert site.imported() == []
    json.dumps(distribution.describe())


@pytest.mark.parametrize(
    ("platforms", "platform", "said"),
    [
        ("cuda = {}", CPU, "is for cuda; this machine is cpu"),
        ('cuda = { minimum = "9.1" }', H100, "is for cuda >=9.1; this machine is cuda 9.0 (device 0, NVIDIA H100)"),
        ('rocm = { gfx = ["gfx90a"] }', MI300, "is for rocm (gfx90a); this machine is rocm gfx942"),
        ("npu = {}", CPU, "is for npu; this machine is cpu"),
        ("xpu = {}\nrocm = {}", H100, "is for xpu or rocm; this machine is cuda"),
    ],
)
def test_a_machine_that_the_manifest_leaves_out(site: Site, platforms: str, platform: Platform, said: str) -> None:
    """Importable libraries do not help where there is no kernel for the architecture."""
    site.provider(hooks=EXPLODES, text=manifest(platforms=platforms))
    record = find(look(platform))
    assert record.failure is not None
    assert (record.failure.kind, record.failure.fault, record.state) == ("wrong platform", False, "not usable")
    assert said in record.failure.reason


def test_an_op_that_this_machine_leaves_out_leaves_the_others(site: Site) -> None:
    """A narrower op is refused alone, with the reason."""
    site.provider(
        text=manifest(
            platforms="cuda = {}\ncpu = {}", ops="silu_and_mul = {}\nrms_norm = { platforms = { cuda = {} } }"
        )
    )
    record = find(look(CPU))
    assert record.usable
    assert dict(record.refused_ops) == {"rms_norm": "it is for cuda; this machine is cpu"}
    assert find(look(H100)).refused_ops == ()


def test_a_provider_of_which_no_op_is_left_is_refused(site: Site) -> None:
    """The reason names what the ops need, which is narrower than what the provider says."""
    site.provider(text=manifest(platforms="cuda = {}", ops='rms_norm.platforms.cuda.minimum = "10.0"'))
    record = find(look(H100))
    assert record.failure is not None
    assert "is for cuda >=10.0; this machine is cuda 9.0" in record.failure.reason


def test_an_op_has_to_meet_its_providers_needs_too(site: Site) -> None:
    """An op cannot widen what its provider needs."""
    site.provider(text=manifest(platforms='cuda = { minimum = "10.0" }', ops='rms_norm.platforms.cuda.minimum = "8.0"'))
    assert not find(look(H100)).usable


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        ('synthetic_lib = ">=1,<2"', None),
        ('synthetic_lib = ">=2"', "requires synthetic_lib >=2, and synthetic_lib 1.5 is installed"),
        ('absent_lib = ""', "requires absent_lib, and absent_lib is not installed"),
    ],
)
def test_a_library_decides_before_use(site: Site, requires: str, said: str | None) -> None:
    """An older version lacks the symbol; the range says so, and the library is not imported either."""
    site.metadata("synthetic_lib", "1.5")
    site.write("synthetic_lib/__init__.py", EXPLODES)
    site.provider(hooks=EXPLODES, text=manifest(requires=requires))
    record = find(look())
    if said is None:
        assert record.usable
    else:
        assert record.failure is not None
        assert (record.failure.kind, record.failure.fault) == ("missing library", False)
        assert said in record.failure.reason
    assert "synthetic_lib" not in sys.modules


def test_the_platform_is_told_before_the_library(site: Site) -> None:
    """Nobody should install a library for a machine that the provider does not run on."""
    site.provider(text=manifest(platforms="cuda = {}", requires='absent_lib = ""'))
    record = find(look(libraries=Libraries(version=lambda _: None, importable=lambda _: False)))
    assert record.failure is not None
    assert record.failure.kind == "wrong platform"


@pytest.mark.parametrize(
    ("variables", "denied"),
    [
        ({}, False),
        ({"VLLM_IR_PROVIDERS": "fake"}, False),
        ({"VLLM_IR_PROVIDERS": " vllm_ir_provider.fake "}, False),
        ({"VLLM_IR_PROVIDERS": ""}, True),
        ({"VLLM_IR_PROVIDERS": "native"}, True),
        ({"VLLM_IR_PROVIDERS_DISABLED": "fake"}, True),
        ({"VLLM_IR_PROVIDERS_DISABLED": "vllm-ir-provider-fake"}, True),
        ({"VLLM_IR_PROVIDERS_DISABLED": "*"}, True),
        ({"VLLM_IR_PROVIDERS": "fake", "VLLM_IR_PROVIDERS_DISABLED": "fake"}, True),
    ],
)
def test_the_operators_lists_decide_first(site: Site, variables: dict[str, str], denied: bool) -> None:
    """Denied by either name, and native stays."""
    site.provider(hooks=EXPLODES)
    found = look(variables=variables)
    record = find(found)
    assert record.usable != denied
    if denied:
        assert record.failure is not None
        assert (record.failure.kind, record.failure.fault) == ("denied by policy", False)
    assert find(found, "native").usable


def test_a_denied_provider_is_not_blamed_for_anything_else(site: Site) -> None:
    """A broken manifest of a denied distribution is the operator's business no more."""
    site.provider(text="nonsense")
    record = find(look(variables={"VLLM_IR_PROVIDERS_DISABLED": "*"}))
    assert record.failure is not None
    assert record.failure.kind == "denied by policy"


def test_an_unknown_name_in_the_allow_list_is_an_error(site: Site) -> None:
    """With a suggestion, and whatever else is right."""
    site.provider()
    with pytest.raises(UnknownAllowed, match="Did you mean 'fake'"):
        look(variables={"VLLM_IR_PROVIDERS": "fakee"})


def test_a_distribution_that_cannot_be_read_may_be_named(site: Site) -> None:
    """Its entry point and its own name are known names."""
    site.provider(text=None)
    for name in ("fake", "vllm-ir-provider-fake"):
        assert find(look(variables={"VLLM_IR_PROVIDERS": name})).failure is not None


def test_two_distributions_with_one_provider_are_both_refused(site: Site) -> None:
    """Each record names both; which one was meant is for the operator to say."""
    site.provider("synthetic-a", package="synthetic_a")
    site.provider("synthetic-b", package="synthetic_b")
    found = look()
    records = [each for each in found.providers if each.name == "fake"]
    assert [each.failure.kind for each in records if each.failure] == ["duplicate provider"] * 2
    for record in records:
        assert "'synthetic-a', 'synthetic-b'" in str(record.reason)
    (conflict,) = found.conflicts
    assert conflict.distributions == ("synthetic-a", "synthetic-b")


@pytest.mark.parametrize(
    "variables", [{"VLLM_IR_PROVIDERS_DISABLED": "synthetic-b"}, {"VLLM_IR_PROVIDERS": "synthetic-a"}]
)
def test_denying_one_of_two_settles_it(site: Site, variables: dict[str, str]) -> None:
    """What the error says to do works."""
    site.provider("synthetic-a", package="synthetic_a")
    site.provider("synthetic-b", package="synthetic_b")
    found = look(variables=variables)
    assert found.conflicts == ()
    assert {each.distribution: each.usable for each in found.providers if each.name == "fake"} == {
        "synthetic-a": True,
        "synthetic-b": False,
    }


def test_a_shadowed_copy_is_recorded_and_is_no_second_distribution(make_site: Callable[[str], Site]) -> None:
    """A canary environment over system packages: the first wins, also with its manifest."""
    make_site("system").provider(version="1.0", ops=("rms_norm", "silu_and_mul"))
    make_site("canary").provider(version="2.0")
    found = look()
    record = find(found)
    assert (record.version, record.ops) == ("2.0", ("rms_norm",))
    (distribution,) = [each for each in found.distributions if each.name == record.distribution]
    assert [copy.version for copy in distribution.shadowed] == ["1.0"]
    assert found.conflicts == ()


def test_a_platform_that_a_distribution_may_bring_leaves_the_verdict_open(site: Site) -> None:
    """Only loading tells; once that is done, the verdict is as for any other platform."""
    site.provider(text=manifest(top='platform = "npu"', platforms="npu = {}"))
    record = find(look())
    assert record.usable
    assert record.note == "Only loading tells whether this machine is npu."
    assert not find(look(platform_known=True)).usable
    npu = Platform(name="npu", device_type="npu")
    assert find(look(npu, platform_known=True)).usable


def test_a_platform_of_a_denied_distribution_is_not_waited_for(site: Site) -> None:
    """It will not load, so nothing is open."""
    site.provider(
        "synthetic-a",
        package="synthetic_a",
        provider="other",
        text=manifest(top='platform = "npu"').replace("fake", "other"),
    )
    site.provider(text=manifest(platforms="npu = {}"))
    assert find(look()).usable
    assert not find(look(variables={"VLLM_IR_PROVIDERS_DISABLED": "synthetic-a"})).usable


def test_the_digest_follows_what_is_found(site: Site) -> None:
    """The same path gives the same digest; a changed manifest, version or verdict another one."""
    site.provider()
    first = look().digest
    assert look().digest == first
    # Among what else is installed may be kernels for one of the two platforms.
    alone = {"VLLM_IR_PROVIDERS": "fake"}
    assert look(H100, variables=alone).digest == look(variables=alone).digest
    digests = {first, look(variables={"VLLM_IR_PROVIDERS_DISABLED": "*"}).digest}
    site.write("vllm_ir_provider_fake/vllm_ir_provider.toml", manifest(top="# a comment"))
    digests.add(look().digest)
    site.provider("synthetic-b", package="synthetic_b", provider="second")
    digests.add(look().digest)
    assert len(digests) == 4


def test_looking_loads_neither_torch_nor_pluggy(site: Site) -> None:
    """A fresh interpreter that has surveyed a path with a provider has loaded nothing that is slow."""
    site.provider(hooks=EXPLODES)
    code = (
        f"import sys; sys.path.insert(0, {str(site.path)!r})\n"
        "from vllm_ir.environment import Environment\n"
        "from vllm_ir.platforms import detect\n"
        "from vllm_ir.plugins.static import survey\n"
        "assert 'fake' in [each.name for each in survey(Environment.read(), detect()).providers]\n"
        "print(sorted({'torch', 'pluggy', 'packaging', 'rich', 'vllm_ir_provider_fake'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
