"""The manifest's dtypes are held against the predicate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import Tensor  # noqa: TC002 - torch reads the annotations of what is registered
from vllm_ir import implements, ops
from vllm_ir_testkit.outcome import FAILED, PASSED, SKIPPED

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir_testkit import TestManager

HOOKS = """
import torch
from torch import Tensor
from vllm_ir import Unsupported, hookimpl, implements, ops

def accepts(x: Tensor):
    return x.dtype in (torch.float32, torch.bfloat16) or Unsupported(f"no kernel for {x.dtype}")

@implements("silu_and_mul", provider="promising", supports_args=accepts)
def silu_and_mul(x: Tensor) -> Tensor:
    return ops.silu_and_mul.impls["native"].impl_fn(x)

@hookimpl
def vllm_ir_implementations(platform):
    return [silu_and_mul]
"""

MANIFEST = """
schema = 1
provider-api = "1"
summary = "Made for a test."
[providers.promising]
dtypes = %s
[providers.promising.platforms]
cpu = {}
[providers.promising.ops.silu_and_mul]
"""


@pytest.mark.parametrize(
    ("dtypes", "what"),
    [
        ('["float32", "bfloat16"]', None),
        ('["float32", "bfloat16", "float16"]', "lists float16, and supports_args refuses"),
        ('["float32"]', "leaves bfloat16 out, and supports_args accepts"),
    ],
)
def test_dtypes_that_disagree_are_caught(
    manager: TestManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caught: list[tuple[str, str, str]],
    dtypes: str,
    what: str | None,
) -> None:
    """A static answer and a live one say the same."""
    package = tmp_path / f"pack_{abs(hash(dtypes))}"
    package.mkdir()
    for name, text in (("__init__.py", ""), ("hooks.py", HOOKS), ("vllm_ir_provider.toml", MANIFEST % dtypes)):
        (package / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert manager.load("promising", f"{package.name}.hooks").failure is None
    (outcome,) = manager.conformance("promising", checks=["manifest"]).outcomes
    if what is None:
        assert outcome.state == PASSED
        return
    assert outcome.state == FAILED
    assert what in outcome.findings[0].what
    caught.append((f"the manifest and the predicate disagree ({dtypes})", "manifest", outcome.findings[0].what))


def test_a_provider_without_a_manifest_is_not_judged_by_one(manager: TestManager) -> None:
    """A program may register kernels by itself."""

    @implements("silu_and_mul", provider="bare")
    def silu_and_mul(x: Tensor) -> Tensor:
        """Return what native returns."""
        right: Tensor = ops.silu_and_mul.impls["native"].impl_fn(x)
        return right

    manager.add(silu_and_mul)
    (outcome,) = manager.conformance("bare", checks=["manifest"]).outcomes
    assert outcome.state == SKIPPED
