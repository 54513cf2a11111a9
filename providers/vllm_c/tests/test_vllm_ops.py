"""vLLM's own kernels, where they are loaded: those that keep the promises are used, and it is said which."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir_provider_vllm_c
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_provider_vllm_c import calls, vllm_ops

if TYPE_CHECKING:
    from collections.abc import Iterator


MANIFEST = Path(vllm_ir_provider_vllm_c.__file__).parent / FILE


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """Let each test find what it defines."""
    vllm_ops.gate.cache_clear()
    yield
    vllm_ops.gate.cache_clear()


@pytest.fixture
def loaded() -> Iterator[None]:
    """Define what vLLM's extension defines, of the gates alone silu, with a kernel that leaves a mark."""

    def silu(out: torch.Tensor, x: torch.Tensor) -> None:
        """Write sevens."""
        del x
        out.fill_(7)

    with torch.library._scoped_library("_C", "FRAGMENT") as library:
        library.define("silu_and_mul(Tensor(a!) result, Tensor input) -> ()")
        library.define("rms_norm(Tensor(a!) result, Tensor input, Tensor weight, float epsilon) -> ()")
        for key in ("CPU", "CUDA"):
            library.impl("silu_and_mul", silu, key)
        yield


def test_without_vllm_every_op_is_ours(cpu: Any) -> None:
    """Which is said, and done."""
    assert set(vllm_ops.serving().values()) == {vllm_ops.OURS}
    calls.gate(torch.randn(2, 16), calls.SILU)
    assert len(cpu.launches) == 1


@pytest.mark.usefixtures("loaded")
def test_vllms_gates_take_contiguous_inputs_and_ours_the_rest(cpu: Any) -> None:
    """A view of packed rows is nothing that vLLM's kernels know."""
    assert torch.equal(calls.gate(torch.randn(2, 16), calls.SILU), torch.full((2, 8), 7.0))
    assert cpu.launches == []
    calls.gate(torch.randn(2, 32)[:, :16], calls.SILU)
    calls.gate(torch.randn(2, 16), calls.GELU)
    assert len(cpu.launches) == 2
    assert calls.gate(torch.randn(0, 16), calls.SILU).shape == (0, 8)


@pytest.mark.usefixtures("loaded")
def test_whose_kernel_it_is_does_not_go_by_the_number_of_rows(cpu: Any) -> None:
    """One row cut out of packed rows is ours, as two are, though torch calls it contiguous."""
    for rows in (1, 2):
        x = torch.randn(rows, 32)[:, :16]
        assert x.is_contiguous() == (rows == 1)
        calls.gate(x, calls.SILU)
        assert len(cpu.launches) == rows
        assert torch.equal(calls.gate(torch.randn(2, 16)[:rows], calls.SILU), torch.full((rows, 8), 7.0))


@pytest.mark.usefixtures("loaded")
def test_where_bits_must_not_depend_on_the_batch_every_kernel_is_ours(
    cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row cut out by its number alone says nothing of how the others lie; so vLLM's serve no row then."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    calls.gate(torch.randn(2, 16), calls.SILU)
    assert len(cpu.launches) == 1
    assert set(vllm_ops.serving().values()) == {vllm_ops.OURS}


@pytest.mark.usefixtures("loaded")
def test_vllms_norms_are_never_used() -> None:
    """Their bits depend on the number of tokens; only what serves an op in full is said to serve it."""
    serving = vllm_ops.serving()
    assert serving["rms_norm"] == serving["fused_add_rms_norm"] == serving["gelu_and_mul"] == vllm_ops.OURS
    assert serving["silu_and_mul"] == vllm_ops.THEIRS


def test_the_manifest_says_of_each_op_whose_kernels_may_serve_it() -> None:
    """`vllm-ir show` imports nothing, so the file has to name exactly those ops that vLLM's kernels may serve."""
    (provider,) = read_manifest(MANIFEST.read_bytes(), str(MANIFEST)).providers.values()
    with torch.library._scoped_library("_C", "FRAGMENT") as library:
        for name in (*vllm_ops.GATES.values(), "rms_norm", "fused_add_rms_norm", "rotary_embedding"):
            library.define(f"{name}(Tensor(a!) result, Tensor input) -> ()")
            library.impl(name, lambda out, _: out.fill_(7), "CUDA")
        may = {op for op, whose in vllm_ops.serving().items() if whose == vllm_ops.THEIRS}
    assert {op.name for op in provider.ops.values() if op.kernels} == may == {"silu_and_mul", "gelu_and_mul"}


def test_an_op_without_a_kernel_for_gpus_is_not_vllms_gpu_kernel() -> None:
    """VLLM's build for CPUs rounds otherwise, and is for tensors that never come here."""
    with torch.library._scoped_library("_C", "FRAGMENT") as library:
        library.define("silu_and_mul(Tensor(a!) result, Tensor input) -> ()")
        library.impl("silu_and_mul", lambda out, _: out.fill_(7), "CPU")
        assert vllm_ops.gate("SILU") is None
