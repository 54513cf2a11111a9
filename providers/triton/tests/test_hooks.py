"""The hooks: they say what the manifest says, load nothing early, and this machine's refusal is the true one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import vllm_ir_provider_triton
from packaging.specifiers import SpecifierSet
from vllm_ir import current_platform
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir.plugins.requirements import Libraries
from vllm_ir_provider_triton import hooks, predicates

MANIFEST = read_manifest(Path(vllm_ir_provider_triton.__file__).with_name(FILE).read_bytes(), FILE)


def test_the_manifest_is_valid_and_says_what_the_hook_returns() -> None:
    """Provider, ops and flags are the same in the file and in the declarations."""
    declared = hooks.vllm_ir_implementations(current_platform)
    said = {
        (name, op.name, op.inplace, op.batch_invariant)
        for name, provider in MANIFEST.providers.items()
        for op in provider.ops.values()
    }
    assert {(one.provider, one.op_name, one.inplace, one.batch_invariant) for one in declared} == said
    assert len(declared) == len(said) == 32


def test_the_manifest_lists_the_dtypes_that_the_predicates_take() -> None:
    """A static answer and a live one agree on dtypes."""
    for provider in MANIFEST.providers.values():
        assert provider.dtypes == tuple(str(dtype).removeprefix("torch.") for dtype in predicates.DTYPES)


def test_it_stands_behind_kernels_of_one_vendor_and_in_graphs_where_invariance_is_asked_for() -> None:
    """Before native in eager lists on both vendors' GPUs; compiled graphs list the batch-invariant set alone."""
    assert MANIFEST.rank < 0
    for provider in MANIFEST.providers.values():
        eager = provider.defaults.of(compiling=False)
        assert {op: set(places) for op, places in eager.items()} == {op: {"cuda", "rocm"} for op in provider.ops}
        compiling = provider.defaults.of(compiling=True)
        assert set(compiling) == (set(provider.ops) if provider.name == "triton_batch_invariant" else set())


@pytest.mark.parametrize(
    ("installed", "refused"),
    [
        ({"triton": "3.6.0"}, None),
        ({"triton": "3.9.0"}, None),
        ({"triton-rocm": "3.8.0"}, None),
        ({"triton": "3.5.1"}, "triton 3.5.1 is installed"),
        ({"triton": "4.0"}, "triton 4.0 is installed"),
        ({}, "is not installed"),
    ],
)
def test_a_triton_that_is_absent_or_out_of_range_is_refused_with_the_range(
    installed: dict[str, str], refused: str | None
) -> None:
    """Before anything is imported, and with both in the sentence."""
    libraries = Libraries(version=installed.get, importable=lambda _: bool(installed))
    error = libraries.refuse(MANIFEST.providers["triton"].requires, "triton", "vllm-ir-provider-triton")
    assert (error is None) == (refused is None)
    if refused is not None:
        assert refused in str(error)
        assert "3.6" in str(error)
        assert str(SpecifierSet(">=3.6,<4")) in str(error) or ">=3.6,<4" in str(error)


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_hooks_imports_no_kernel_no_torch_and_no_triton() -> None:
    """A process that only lists providers, or runs on another platform, pays nothing for this one."""
    names = ("torch", "triton", "vllm_ir_provider_triton.kernels", "vllm_ir_provider_triton.programs")
    code = f"import sys, vllm_ir_provider_triton.hooks\nprint([name for name in {names} if name in sys.modules])"
    assert run(code) == "[]"


def test_declaring_imports_no_triton_and_starts_nothing() -> None:
    """No CUDA context, no driver and no Triton, also once the hook has been asked and a CPU call has been refused."""
    code = (
        "import sys, torch, vllm_ir\n"
        "from vllm_ir_provider_triton import hooks\n"
        "found = hooks.vllm_ir_implementations(None)\n"
        "assert not found[0].supports_args(torch.ones(2, 8), None, 1e-6)\n"
        "print(torch.cuda.is_initialized(), 'triton' in sys.modules, 'libcuda.so' in open('/proc/self/maps').read())"
    )
    assert run(code) == "False False False"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, and nothing refuses")
def test_a_machine_without_a_gpu_is_told_so() -> None:
    """`vllm-ir explain` names what the kernels are for, and what this machine is."""
    said = " ".join(run("from vllm_ir.cli.main import main\nmain(['explain', 'rms_norm', '--json'])").split())
    for provider in ("triton", "triton_batch_invariant"):
        assert f"'{provider}' of vllm-ir-provider-triton is for cuda >=8.0 or rocm" in said
    assert "this machine is" in said
