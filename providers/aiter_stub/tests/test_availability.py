"""Who is refused before AITER is imported, and in which words: by the manifest, by metadata, by sources."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import vllm_ir_provider_aiter
from vllm_ir.environment import Environment
from vllm_ir.platforms import Device, Platform
from vllm_ir.plugins.distributions import EntryPoint, Installed
from vllm_ir.plugins.static import survey
from vllm_ir_provider_aiter import availability
from vllm_ir_provider_aiter.symbols import CALLED, READ

if TYPE_CHECKING:
    from collections.abc import Callable

    from providers.aiter_stub.tests.conftest import Site

NAME = "vllm-ir-provider-aiter"
RANGE = ">=0.1.7,<0.1.8"
W7900 = Device("W7900", gfx="gfx1100")


def refusal(platform: Platform) -> str | None:
    """Return why files alone refuse the provider on a machine, or None."""
    entry = EntryPoint("aiter", "vllm_ir_provider_aiter.hooks", None)
    package = str(Path(vllm_ir_provider_aiter.__file__).parents[1])
    found = survey(Environment(), platform, [Installed(NAME, "0.1.0", package, (entry,), (), ())])
    return next(each.reason for each in found.providers if each.name == "aiter")


@pytest.mark.parametrize(
    ("platform", "machine"),
    [
        (Platform(name="cpu", device_type="cpu", devices=[Device("EPYC")]), "cpu"),
        (Platform(name="cuda", device_type="cuda", devices=[Device("H200", (9, 0))]), "cuda"),
        (Platform(name="xpu", device_type="xpu", devices=[Device("Max 1550")]), "xpu"),
        (
            Platform(name="rocm", device_type="cuda", devices=[Device("MI250X", gfx="gfx90a")]),
            "rocm gfx90a (device 0, MI250X)",
        ),
        (
            Platform(name="rocm", device_type="cuda", devices=[Device("RX 9070", gfx="gfx1201")]),
            "rocm gfx1201 (device 0, RX 9070)",
        ),
        (
            Platform(name="rocm", device_type="cuda", devices=[Device("MI300X", gfx="gfx942"), W7900]),
            "rocm gfx1100 (device 1, W7900)",
        ),
    ],
)
def test_a_machine_that_aiter_does_not_serve(site: Site, platform: Platform, machine: str) -> None:
    """The architecture decides, also where AITER is installed: on the others it crashes in the first kernel."""
    assert site.package.is_dir()
    assert refusal(platform) == f"Provider 'aiter' of {NAME} is for rocm (gfx942, gfx950); this machine is {machine}."


@pytest.mark.parametrize("gfx", ["gfx942", "gfx950"])
def test_a_machine_that_aiter_serves(site: Site, machine: Callable[..., Platform], gfx: str) -> None:
    """With the version that was read, nothing is refused, and nothing was imported to know it."""
    assert site.package.is_dir()
    assert refusal(machine(gfx)) is None
    assert all(availability.supported(op) is True for op in CALLED)
    assert "aiter" not in sys.modules


def sentence(got: str) -> str:
    """Return what the manifest says where AITER is not what is needed."""
    wanted = ">=0.1.7,<0.1.8"
    return (
        f"Provider 'aiter' of {NAME} requires aiter {wanted}, and {got}. Install it: pip install 'amd-aiter{wanted}'."
    )


def test_no_aiter(empty: Site, machine: Callable[..., Platform]) -> None:
    """The name to install is not the name to import."""
    assert empty.path.is_dir()
    assert refusal(machine()) == sentence("amd-aiter is not installed")
    assert str(availability.supported("rms_norm")) == "amd-aiter is not installed: pip install amd-aiter"


def test_the_other_package_of_that_name(unlabelled: Site, machine: Callable[..., Platform]) -> None:
    """The module is there, and the metadata tell that it is another one's."""
    unlabelled.metadata("aiter", "0.13.20191203")
    other = "amd-aiter is not installed (aiter 0.13.20191203 is, another package with a module 'aiter')"
    assert refusal(machine()) == sentence(other)


def test_a_module_of_unknown_origin(unlabelled: Site, machine: Callable[..., Platform]) -> None:
    """A copy without metadata may be anything."""
    assert unlabelled.package.is_dir()
    unknown = "amd-aiter is not installed (a module 'aiter' of unknown origin is)"
    assert refusal(machine()) == sentence(unknown)


def test_both_packages_of_that_name(site: Site) -> None:
    """They write over each other's files, so the module may be half of each."""
    site.metadata("aiter", "0.13.20191203")
    said = str(availability.supported("rms_norm"))
    assert said.startswith(f"amd-aiter {READ} and aiter 0.13.20191203, an unrelated package, are both installed")
    assert said.endswith("uninstall both, then install amd-aiter")


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("0.1.6", False),
        ("0.1.7", True),
        (READ, True),
        ("0.1.7.post9+rocm7", True),
        ("0.1.8.dev1", False),
        ("1.0", False),
    ],
)
def test_a_version_outside_the_range(
    unlabelled: Site, machine: Callable[..., Platform], version: str, fits: bool
) -> None:
    """Roundings were read in one version, and its range is short; builds from source count."""
    unlabelled.metadata("amd-aiter", version)
    assert refusal(machine()) == (None if fits else sentence(f"amd-aiter {version} is installed"))


def test_metadata_without_a_module(empty: Site, machine: Callable[..., Platform]) -> None:
    """An installation that was half removed."""
    empty.metadata("amd-aiter", READ)
    assert refusal(machine()) == sentence(f"amd-aiter {READ} is installed but Python finds no module 'aiter'")
    assert availability.supported("rms_norm") is not True


def test_a_symbol_that_is_missing_refuses_its_op_alone(site: Site) -> None:
    """The others are called all the same."""
    site.change("ops/activation.py", "def silu_and_mul(", "def silu_mul(")
    said = str(availability.supported("silu_and_mul"))
    assert said == f"amd-aiter {READ} has no function silu_and_mul; version {READ} has it"
    assert availability.supported("rms_norm") is True


def test_a_signature_that_differs_is_shown_beside_the_call(site: Site) -> None:
    """A parameter that came in between would silently take the value of another."""
    site.change("ops/activation.py", "(out: Tensor, input: Tensor)", "(out: Tensor, scale: Tensor, input: Tensor)")
    assert str(availability.supported("silu_and_mul")) == (
        f"amd-aiter {READ} has silu_and_mul(out, scale, input), and this provider calls silu_and_mul(out, input),"
        f" as in version {READ}"
    )


def test_a_flag_that_came_in_between_is_no_harm(site: Site) -> None:
    """Flags are given by name, so a newer one before them takes its default."""
    site.change(
        "ops/rmsnorm.py",
        "    epsilon: float,\n    use_model_sensitive_rmsnorm: int = 0,\n) -> None",
        "    epsilon: float,\n    gemma: bool = False,\n    use_model_sensitive_rmsnorm: int = 0,\n) -> None",
    )
    assert availability.supported("fused_add_rms_norm") is True


def test_sources_that_cannot_be_read(site: Site) -> None:
    """What is not Python, or no text, is a refusal with its cause."""
    site.change("ops/activation.py", "def silu_and_mul(", "def silu_and_mul((")
    assert str(availability.supported("silu_and_mul")).startswith(f"the sources of amd-aiter {READ} cannot be read: ")


@pytest.mark.parametrize("left", [None, "", "from .ops.activation import gelu_and_mul\n"])
def test_a_package_that_is_installed_in_part(site: Site, left: str | None) -> None:
    """Without its first file, or with one that does not bring the function, the sources of the ops help nobody."""
    first = site.package / "__init__.py"
    first.unlink()
    if left is not None:
        first.write_text(left, encoding="utf-8")
    importlib.invalidate_caches()
    assert str(availability.supported("silu_and_mul")) == (
        f"amd-aiter {READ} is installed in part: aiter/__init__.py is missing, or does not import silu_and_mul from"
        f" aiter/ops/activation.py; pip install --force-reinstall --no-deps 'amd-aiter=={READ}'"
    )


def test_a_star_brings_a_function_from_its_module(site: Site) -> None:
    """As AITER has it; and by its full name all the same."""
    named = "try:\n    from aiter.ops.activation import silu_and_mul\nfinally:\n    pass\n"
    for line in ("from .ops.activation import *\n", named):
        (site.package / "__init__.py").write_text(line, encoding="utf-8")
        assert availability.supported("silu_and_mul") is True
        assert availability.supported("rms_norm") is not True


@pytest.mark.parametrize("error", [MemoryError(), RecursionError("too deep"), ValueError("null bytes")])
def test_sources_that_python_gives_up_on(site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A parser that runs out of stack is a refusal, too; some versions of Python say nothing with it."""

    def parse(text: str) -> None:
        """Give up."""
        del text
        raise error

    assert site.package.is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        said = str(availability.supported("silu_and_mul"))
    assert said == f"the sources of amd-aiter {READ} cannot be read: {str(error) or 'MemoryError'}"


def test_a_module_that_forbids_being_looked_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is blocked is not there."""
    assert availability.package() == site.package
    monkeypatch.setitem(sys.modules, "aiter", None)
    assert availability.package() is None
