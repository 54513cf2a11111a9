"""The core's own hooks and manifest: held to the rules that everybody's are held to."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch, which this interpreter has not")

from vllm_ir import ops
from vllm_ir.names import RESERVED
from vllm_ir.platforms import BUILT_IN, Platform
from vllm_ir.plugins import native
from vllm_ir.plugins.manifest_file import read_manifest

FILE = Path(native.__file__).parents[1] / "vllm_ir_provider.toml"


def test_the_manifest_lists_the_ops_that_there_are() -> None:
    """Every op of the core, with the flags of its native function, on every built-in platform."""
    manifest = read_manifest(FILE.read_bytes(), str(FILE), reserved=())
    assert set(manifest.adds_ops) == set(ops.__all__)
    provider = manifest.providers["native"]
    assert set(provider.platforms) == set(BUILT_IN)
    assert {op.name: (op.inplace, op.batch_invariant) for op in provider.ops.values()} == {
        name: (getattr(ops, name).impls["native"].inplace, getattr(ops, name).impls["native"].batch_invariant)
        for name in ops.__all__
    }


def test_the_manifest_names_the_parts_of_every_op_that_has_some() -> None:
    """So files tell of parts what a run does, without torch."""
    manifest = read_manifest(FILE.read_bytes(), str(FILE), reserved=())
    assert {op.name: op.parts for op in manifest.providers["unfused"].ops.values()} == {
        name: tuple(part.name for part in getattr(ops, name).declaration.parts)
        for name in ops.__all__
        if getattr(ops, name).declaration.parts
    }


def test_the_hooks_return_ops_and_native_functions() -> None:
    """They return what is registered already, so that entering by the hook changes nothing."""
    assert [op.name for op in native.vllm_ir_ops()] == list(ops.__all__)
    implementations = native.vllm_ir_implementations(Platform(name="npu", device_type="npu"))
    assert [(impl.op_name, impl.provider) for impl in implementations] == [
        (name, provider) for name in ops.__all__ for provider in getattr(ops, name).impls if provider in RESERVED
    ]
    assert {impl.op_name for impl in implementations if impl.provider == "native"} == set(ops.__all__)
    assert {impl.op_name for impl in implementations if impl.provider == "unfused"} == {
        name for name in ops.__all__ if getattr(ops, name).declaration.parts
    }
    assert implementations[0] is getattr(ops, ops.__all__[0]).impls["native"]
