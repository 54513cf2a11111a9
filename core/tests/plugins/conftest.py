"""Distributions made by hand, complete as an installer leaves them, in a folder that is put on the path.

A test says only what it is about; the rest of a distribution is right by default.
"""

from __future__ import annotations

import importlib
import sys
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from vllm_ir.plugins.distributions import scan
from vllm_ir.plugins.manifest import FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from vllm_ir.runtime import Runtime

KERNELS = """
from torch import Tensor
from vllm_ir import implements

@implements("rms_norm", provider={provider!r})
def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    return x + 1

@implements("silu_and_mul", provider={provider!r})
def silu_and_mul(x: Tensor) -> Tensor:
    return x[..., : x.shape[-1] // 2] + 1

ALL = {{"rms_norm": rms_norm, "silu_and_mul": silu_and_mul}}
"""

HOOKS = """
from vllm_ir import hookimpl

@hookimpl
def vllm_ir_implementations(platform):
    from {package} import kernels
    return [kernels.ALL[name] for name in {ops!r}]
"""


def manifest(
    provider: str = "fake",
    *,
    ops: tuple[str, ...] = ("rms_norm",),
    platforms: str = "cpu = {}",
    top: str = "",
    more: str = "",
    api: str = "1",
) -> str:
    """Return the text of a manifest.

    Args:
        provider: its one provider.
        ops: what that implements.
        platforms: lines of its table of platforms.
        top: further lines before the first table.
        more: further lines after the last table.
        api: version of the provider API.
    """
    lines = ["schema = 1", f'provider-api = "{api}"', 'summary = "A distribution made by hand."', top]
    lines += [f"[providers.{provider}.platforms]", platforms, f"[providers.{provider}.ops]"]
    return "\n".join([*lines, *(f"{op} = {{}}" for op in ops), more]) + "\n"


@dataclass
class Site:
    """A folder of installed distributions.

    Args:
        path: the folder; it is on the path.
        packages: top-level packages that were written into it.
    """

    path: Path
    packages: list[str] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the folder and return its path."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text), encoding="utf-8")
        return target

    def metadata(self, distribution: str, version: str = "1.0", entry_points: str = "") -> Path:
        """Write the folder of metadata that an installer leaves, and return it."""
        stem = f"{distribution.replace('-', '_')}-{version}.dist-info"
        self.write(f"{stem}/METADATA", f"Metadata-Version: 2.4\nName: {distribution}\nVersion: {version}\n")
        self.write(
            f"{stem}/WHEEL", "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        self.write(f"{stem}/INSTALLER", "by hand\n")
        files = ["METADATA", "WHEEL", "INSTALLER", "RECORD"]
        if entry_points:
            self.write(f"{stem}/entry_points.txt", entry_points)
            files.append("entry_points.txt")
        self.write(f"{stem}/RECORD", "".join(f"{stem}/{file},,\n" for file in files))
        importlib.invalidate_caches()
        return self.path / stem

    def provider(
        self,
        distribution: str = "vllm-ir-provider-fake",
        *,
        provider: str = "fake",
        package: str | None = None,
        version: str = "1.0",
        ops: tuple[str, ...] = ("rms_norm",),
        text: str | None = "",
        hooks: str | None = None,
        kernels: str | None = None,
        entry_point: str | None = None,
        files: Mapping[str, str] | None = None,
    ) -> str:
        """Write a whole distribution and return the name of its package.

        Args:
            distribution: its name.
            provider: its one provider.
            package: its package; default: after its name.
            version: its version.
            ops: what the provider implements.
            text: of the manifest; empty for a right one, None for none at all.
            hooks: source of the module with the hooks; default: right ones.
            kernels: source of the module with the kernels; default: right ones.
            entry_point: its line in the group; default: a right one.
            files: further files of the package by name.
        """
        package = package or distribution.replace("-", "_")
        line = f"{provider} = {package}.hooks" if entry_point is None else entry_point
        self.metadata(distribution, version, f"[console_scripts]\nother = other:main\n\n[vllm_ir.providers]\n{line}\n")
        self.write(f"{package}/__init__.py", "")
        if text is not None:
            self.write(f"{package}/{FILE}", text or manifest(provider, ops=ops))
        self.write(f"{package}/hooks.py", HOOKS.format(package=package, ops=ops) if hooks is None else hooks)
        self.write(f"{package}/kernels.py", KERNELS.format(provider=provider) if kernels is None else kernels)
        for name, content in (files or {}).items():
            self.write(f"{package}/{name}", content)
        self.packages.append(package)
        importlib.invalidate_caches()
        return package

    def imported(self) -> list[str]:
        """Return which of its packages this process has imported."""
        return [name for name in self.packages if name in sys.modules]


ELSEWHERE = [each.name for each in scan() if each.name != "vllm-ir" and each.providers]
"""Distributions with providers that are installed here whatever the test makes."""


@pytest.fixture
def make_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Site]]:
    """Give what makes folders of distributions; each one made comes before the earlier ones on the path."""
    sites: list[Site] = []

    def make(name: str) -> Site:
        """Make a folder and put it first on the path."""
        path = tmp_path / name
        path.mkdir()
        monkeypatch.syspath_prepend(str(path))
        sites.append(Site(path))
        return sites[-1]

    yield make
    for package in {package for site in sites for package in site.packages}:
        for module in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
            del sys.modules[module]
    importlib.invalidate_caches()


@pytest.fixture
def site(make_site: Callable[[str], Site]) -> Site:
    """Give one folder of distributions, first on the path."""
    return make_site("site")


@pytest.fixture
def discovering(site: Site) -> Iterator[Runtime]:
    """Give a fresh process state whose first selection discovers what is on the path."""
    pytest.importorskip("torch", reason="needs torch, which this interpreter has not")
    import vllm_ir.ops  # noqa: F401 - registers core's ops before the state is taken apart
    from vllm_ir.isolation import isolated
    from vllm_ir.plugins import load_providers

    assert site.path.is_dir()
    # A provider that is installed beside the core would take the places that a test gives to its own.
    denied = {"VLLM_IR_PROVIDERS_DISABLED": ",".join(ELSEWHERE)} if ELSEWHERE else {}
    with isolated(denied, loader=load_providers) as fresh:
        yield fresh
