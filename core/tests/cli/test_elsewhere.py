"""`--platform`: one machine asked about another, from files; nothing is imported, and this machine does not matter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site

BOMB = "raise SystemExit('a provider was imported')\n"
NEEDS = """
schema = 1
provider-api = "1"
summary = "A provider made for a test."
rank = {rank}
{top}
[providers.{provider}]
batch-invariant = {invariant}
[providers.{provider}.platforms]
{platform}
[providers.{provider}.ops.rms_norm]
[providers.{provider}.default.eager]
rms_norm = ["{name}"]
"""


def add(site: Site, provider: str, platform: str, *, rank: int = 0, invariant: bool = False, top: str = "") -> None:
    """Write a distribution that wants to be first on one platform, and must not be imported."""
    site.add_provider(provider, hooks=BOMB)
    name = platform.partition(" ")[0]
    text = NEEDS.format(
        provider=provider, platform=platform, rank=rank, invariant=str(invariant).lower(), top=top, name=name
    )
    (site.folder / f"pack_{provider}" / "vllm_ir_provider.toml").write_text(text, encoding="utf-8")


def rows(text: str) -> dict[str, dict[str, Any]]:
    """Return the candidates of a JSON answer that these tests made, and native, in their order."""
    return {
        each["provider"]: each
        for each in json.loads(text)["candidates"]
        if each["provider"].startswith("made_") or each["provider"] == "native"
    }


@pytest.fixture
def fleet(site: Site) -> Site:
    """Give providers for the machines of a fleet."""
    add(site, "made_fast", 'cuda = { minimum = "8.0" }', rank=2)
    add(site, "made_sure", 'cuda = { minimum = "9.0" }', rank=1, invariant=True)
    add(site, "made_red", 'rocm = { gfx = ["gfx942"] }', rank=1)
    return site


@pytest.mark.parametrize(
    ("platform", "variables", "selected", "order"),
    [
        ("cuda:9.0", {}, "made_fast", ["made_fast", "made_sure", "native", "made_red"]),
        ("cuda:8.0", {}, "made_fast", ["made_fast", "native", "made_red", "made_sure"]),
        ("cuda:7.5", {}, "native", ["native", "made_fast", "made_red", "made_sure"]),
        ("rocm:gfx942", {}, "made_red", ["made_red", "native", "made_fast", "made_sure"]),
        ("rocm:gfx1100", {}, "native", ["native", "made_fast", "made_red", "made_sure"]),
        ("xpu", {}, "native", ["native", "made_fast", "made_red", "made_sure"]),
        (
            "cuda:9.0",
            {"VLLM_BATCH_INVARIANT": "1"},
            "made_sure",
            ["made_fast", "made_sure", "native", "made_red"],
        ),
        (
            "cuda:9.0",
            {"VLLM_IR_PROVIDERS_DISABLED": "made_fast:rms_norm,cpu_c"},
            "made_sure",
            ["made_sure", "native", "made_fast", "made_red"],
        ),
    ],
)
def test_each_machine_of_a_fleet(
    fleet: Site, platform: str, variables: dict[str, str], selected: str, order: list[str]
) -> None:
    """The order there, with the batch-invariant ones where they are asked for; `--static` may be left out."""
    for flags in (["--static"], []):
        done = fleet.run(
            "explain",
            "rms_norm",
            *flags,
            "--platform",
            platform,
            "--json",
            VLLM_IR_PROVIDERS=",".join(order),
            **variables,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert (told["selected"], told["static"], told["platform"]["named"]) == (selected, True, True)
        seen = rows(done.stdout)
        assert sorted(seen) == sorted(order)
        assert [name for name in seen if seen[name]["layer"]] == order[: order.index("native") + 1]
        assert "this machine" not in done.stdout


def test_the_reason_speaks_of_the_machine_that_was_named(fleet: Site) -> None:
    """And says nothing of this one."""
    done = fleet.run("explain", "rms_norm", "--platform", "cuda:7.5", COLUMNS="")
    assert "no: it is for cuda >=9.0; the platform asked about is cuda 7.5." in done.stdout
    assert "rms_norm, eager, on cuda 7.5, as it was named" in done.stdout


def test_a_library_that_is_missing_here_is_no_refusal_there(fleet: Site) -> None:
    """What that machine has installed is not known; what it needs is told."""
    manifest = fleet.folder / "pack_made_fast" / "vllm_ir_provider.toml"
    text = manifest.read_text(encoding="utf-8")
    needs = 'requires = { library_of_elsewhere = ">=3.1" }\nbatch-invariant'
    manifest.write_text(text.replace("batch-invariant", needs), encoding="utf-8")
    done = fleet.run("explain", "rms_norm", "--platform", "cuda:9.0", "--json")
    told = json.loads(done.stdout)
    assert told["selected"] == "made_fast"
    said = "made_fast: The machine that is asked about needs library_of_elsewhere>=3.1 for it; here"
    assert any(doubt.startswith(said) for doubt in told["doubts"])


def test_what_a_hook_decides_shows_as_such(site: Site) -> None:
    """Its provider is in no list as far as files tell, and the row says that this may not be so."""
    add(site, "made_late", "cuda = {}", top="defaults-at-run-time = true")
    manifest = site.folder / "pack_made_late" / "vllm_ir_provider.toml"
    manifest.write_text(manifest.read_text(encoding="utf-8").partition("[providers.made_late.default")[0])
    done = site.run("explain", "rms_norm", "--platform", "cuda:9.0", COLUMNS="")
    (row,) = [line for line in done.stdout.splitlines() if " made_late " in line]
    assert row.endswith("not known: a hook decides at run time whether a list names it")
    assert "dist-made_late decides its default order at run time; ask on the machine itself" in done.stdout
    silent = site.run("explain", "silu_and_mul", "--platform", "cuda:9.0", COLUMNS="")
    assert "dist-made_late decides" not in silent.stdout


def test_a_vendors_platform_is_known_by_the_manifest_that_brings_it(site: Site) -> None:
    """Its own order is in its code, which is said; on another platform it is not asked about."""
    add(site, "made_npu", "npu = {}", top='platform = "npu"')
    done = site.run("explain", "rms_norm", "--platform", "npu", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["selected"], told["platform"]["name"]) == (0, "made_npu", "npu")
    assert any("only its code tells in which order it wants providers" in doubt for doubt in told["doubts"])
    other = site.run("explain", "rms_norm", "--platform", "cpu", "--json")
    assert rows(other.stdout)["made_npu"]["reason"].endswith("is for npu; the platform asked about is cpu.")
    assert not any("dist-made_npu" in doubt for doubt in json.loads(other.stdout)["doubts"])


def test_a_platform_that_is_none(site: Site) -> None:
    """The names there are stand in the error, those of vendors too."""
    add(site, "made_npu", "npu = {}", top='platform = "npu"')
    for verb in (["explain", "rms_norm"], ["list"]):
        done = site.run(*verb, "--platform", "npv")
        assert (done.returncode, done.stdout) == (2, "")
        assert "Platform 'npv' is no platform (platforms: cpu, cuda:9.0, rocm:gfx942, xpu, npu)." in done.stderr


def test_the_list_of_another_machine(fleet: Site) -> None:
    """Who may run there; loading is asked of the machine itself."""
    done = fleet.run("list", "--platform", "rocm:gfx942", "--json")
    names = [each["name"] for each in json.loads(done.stdout)["providers"]]
    assert "made_red" in names
    assert not {"made_fast", "made_sure"} & set(names)
    assert "providers may run there" in fleet.run("list", "--platform", "rocm:gfx942").stdout
    done = fleet.run("list", "--load", "--platform", "rocm:gfx942")
    assert done.returncode == 2
    assert "--load imports on this machine" in done.stderr


def test_a_provider_of_the_cpu_hands_on_the_calls_of_a_device(site: Site) -> None:
    """Who asks about a GPU means tensors of the GPU, whoever was named first; a table says it in few words."""
    add(site, "made_host", "cpu = {}")
    variables = {"VLLM_IR_PROVIDERS": "made_host", "VLLM_IR_OP_PRIORITY": "rms_norm=made_host"}
    for platform, selected in (("cuda:9.0", "native"), ("rocm:gfx942", "native"), ("cpu", "made_host")):
        done = site.run("explain", "rms_norm", "--platform", platform, "--json", **variables)
        assert (done.returncode, json.loads(done.stdout)["selected"]) == (0, selected), done.stderr
        row = rows(done.stdout)["made_host"]
        assert row["accepted"] == row["selected"] == (selected == "made_host")
        assert row["reason"].startswith("takes CPU tensors only") == (selected == "native")


@pytest.mark.parametrize("width", [40, 80])
def test_a_long_list_of_architectures_folds(site: Site, width: int) -> None:
    """The row has the provider's name already, and no line is wider than the terminal."""
    names = [f'"gfx11{number:02}"' for number in range(12)]
    add(site, "made_red", f"rocm = {{ gfx = [{', '.join(names)}] }}")
    variables = {"VLLM_IR_PROVIDERS": "made_red", "COLUMNS": str(width)}
    done = site.run("explain", "rms_norm", "--platform", "cpu", **variables)
    assert max(map(len, done.stdout.splitlines())) <= width
    assert "no: it is for rocm (gfx1100, gfx1101," in " ".join(done.stdout.split())
