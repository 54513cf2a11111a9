"""A state for authors' tests that refuses to look at the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import vllm_ir
from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import implements, ops, runtime
from vllm_ir_testkit import TestManager
from vllm_ir_testkit.errors import RealDiscoveryRefused

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = """
schema = 1
provider-api = "1"
summary = "Made for a test."
[providers.{name}]
dtypes = {dtypes}
[providers.{name}.platforms]
cpu = {{}}
[providers.{name}.ops.silu_and_mul]
batch-invariant = {invariant}
"""

HOOKS = """
from torch import Tensor
from vllm_ir import hookimpl, implements, ops

@implements("silu_and_mul", provider="{name}")
def silu_and_mul(x: Tensor) -> Tensor:
    return ops.silu_and_mul.impls["native"].impl_fn(x)

@hookimpl
def vllm_ir_implementations(platform):
    return [silu_and_mul]
"""


def write(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, dtypes: str = '["float32"]', invariant: str = "false"
) -> str:
    """Write a package with hooks and a manifest, and return the module of the hooks."""
    package = folder / f"pack_{name}"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "hooks.py").write_text(HOOKS.format(name=name), encoding="utf-8")
    manifest = MANIFEST.format(name=name, dtypes=dtypes, invariant=invariant)
    (package / "vllm_ir_provider.toml").write_text(manifest, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    return f"pack_{name}.hooks"


@implements("silu_and_mul", provider="made_here")
def silu_and_mul(x: Tensor) -> Tensor:
    """Return what native returns."""
    right: Tensor = ops.silu_and_mul.impls["native"].impl_fn(x)
    return right


def test_real_discovery_is_refused(manager: TestManager) -> None:
    """The sentence says what to do instead."""
    del manager
    with pytest.raises(RealDiscoveryRefused, match=r"manager\.add"):
        vllm_ir.load_providers()
    with pytest.raises(RealDiscoveryRefused):
        vllm_ir.providers()


def test_what_is_added_is_there_and_gone_afterwards() -> None:
    """No trace is left in the process."""
    before = runtime.current().discovery
    with TestManager() as manager:
        manager.add(silu_and_mul)
        assert "made_here" in ops.silu_and_mul.supported_providers()
    assert "made_here" not in ops.silu_and_mul.impls
    assert runtime.current().discovery is before


def test_variables_hold_inside() -> None:
    """The environment of a test is what it says, not the shell's."""
    with TestManager({"VLLM_IR_STRICT": "1"}):
        assert runtime.current().environment.strict
    with TestManager():
        assert not runtime.current().environment.strict


def test_hooks_are_loaded_as_discovery_loads_them(
    manager: TestManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says loaded, and two modules may be loaded one after the other."""
    for name in ("one", "two"):
        record = manager.load(name, write(tmp_path, name, monkeypatch))
        assert record.failure is None
        assert record.providers[0].state == "loaded"
    assert {each.name for each in vllm_ir.providers()} == {"native", "unfused", "one", "two"}
    assert manager.conformance("one", checks=["zero_tokens"]).clean


def test_hooks_that_disagree_with_their_manifest_are_told(
    manager: TestManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record carries the failure, and conformance is red with its sentence."""
    record = manager.load("liar", write(tmp_path, "liar", monkeypatch, invariant="true"))
    assert record.failure is not None
    report = manager.conformance("liar")
    assert report.exit_code == 1
    assert "batch-invariant" in report.failed[0].findings[0].what
