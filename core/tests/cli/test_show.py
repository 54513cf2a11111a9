"""`vllm-ir show`: one provider or op in full, from files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.tests.cli.conftest import Site


def test_an_op_says_what_it_means_and_who_implements_it(site: Site) -> None:
    """Signature, docstring and place come from the source, implementations from manifests."""
    site.add_provider("good", default=True)
    done = site.run("show", "rms_norm", "--json")
    told = json.loads(done.stdout)["op"]
    assert done.returncode == 0
    assert told["signature"].startswith("rms_norm(x: Tensor, weight: Tensor | None, epsilon: float")
    assert told["distribution"] == "vllm-ir"
    assert told["doc"]
    rows = {each["provider"]: each for each in told["implementations"]}
    assert rows["native"]["distribution"] == "vllm-ir"
    assert rows["good"]["default_eager"] == ["cpu"]
    assert rows["good"]["reason"] is None


def test_a_provider_says_where_it_comes_from_and_what_it_does(site: Site) -> None:
    """Everything of the manifest and the installation is there."""
    site.add_provider("good", platform="faraway")
    done = site.run("show", "good", "--json")
    (told,) = json.loads(done.stdout)["providers"]
    assert told["summary"] == "A provider made for a test."
    assert told["location"] == str(site.folder)
    assert told["failure"]["kind"] == "wrong platform"
    assert list(told["implementations"]) == ["rms_norm"]
    assert done.returncode == 0


def test_whose_kernels_run_an_op_is_told(site: Site) -> None:
    """Of an op that another library's kernels may serve the manifest says so; all others are the provider's own."""
    site.add_provider("good")
    manifest = site.folder / "pack_good" / "vllm_ir_provider.toml"
    text = manifest.read_text(encoding="utf-8") + 'kernels = "those of another library, where it is loaded."\n'
    manifest.write_text(text + "[providers.good.ops.silu_and_mul]\n", encoding="utf-8")
    lines = site.run("show", "good").stdout.splitlines()
    place = lines.index("kernels")
    assert lines[place + 1 : place + 3] == [
        "  rms_norm: those of another library, where it is loaded.",
        "  silu_and_mul: its own.",
    ]
    (told,) = json.loads(site.run("show", "good", "--json").stdout)["providers"]
    assert told["implementations"]["rms_norm"]["kernels"] == "those of another library, where it is loaded."
    assert told["implementations"]["silu_and_mul"]["kernels"] is None


def test_a_provider_that_is_broken_is_a_finding(site: Site) -> None:
    """A fault that files can see makes exit 1."""
    site.add("dist-bare", {"vllm_ir.providers": "bare = pack_bare.hooks"}, {"pack_bare/__init__.py": ""})
    done = site.run("show", "bare")
    assert done.returncode == 1
    assert "manifest missing" in done.stdout


def test_people_read_it_at_eighty_columns(site: Site) -> None:
    """Both kinds of page fit."""
    site.add_provider("good", default=True)
    for name in ("good", "native", "rms_norm"):
        done = site.run("show", name)
        lines = [line for line in done.stdout.splitlines() if "/" not in line]
        assert done.returncode == 0
        assert max(map(len, lines)) <= 120, name


def test_an_unknown_name_is_answered_with_the_nearest(site: Site) -> None:
    """One sentence with all names, exit 2."""
    done = site.run("show", "rms_nrom")
    assert done.returncode == 2
    assert "Did you mean 'rms_norm'?" in done.stderr


def test_a_name_that_is_both_shows_both(site: Site) -> None:
    """A provider may be called like an op."""
    site.add_provider("rms_norm")
    told = json.loads(site.run("show", "rms_norm", "--json").stdout)
    assert told["op"]["name"] == "rms_norm"
    assert [each["name"] for each in told["providers"]] == ["rms_norm"]
    text = site.run("show", "rms_norm").stdout
    assert "op rms_norm" in text
    assert "provider rms_norm" in text


def test_an_op_that_nobody_declares_says_so(site: Site) -> None:
    """An implementation whose op is not installed can never be called."""
    site.add_provider("good")
    manifest = site.folder / "pack_good" / "vllm_ir_provider.toml"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("rms_norm", "orphan"), encoding="utf-8")
    assert "no installed distribution, so nothing can call it" in site.run("show", "orphan").stdout
