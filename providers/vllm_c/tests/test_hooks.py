"""The hooks: they say what the manifest says, load nothing early, and this machine's refusal is the true one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import vllm_ir_provider_vllm_c
from vllm_ir import Unsupported, current_platform
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_provider_vllm_c import availability, compiling, cubins, hooks, predicates
from vllm_ir_provider_vllm_c.variants import OPS

MANIFEST = Path(vllm_ir_provider_vllm_c.__file__).parent / FILE


def test_the_manifest_is_valid_and_says_what_the_hook_returns() -> None:
    """Provider, ops and flags are the same in the file and in the declarations."""
    manifest = read_manifest(MANIFEST.read_bytes(), str(MANIFEST))
    declared = hooks.vllm_ir_implementations(current_platform)
    said = {
        (name, op.name, op.inplace, op.batch_invariant)
        for name, provider in manifest.providers.items()
        for op in provider.ops.values()
    }
    assert {(one.provider, one.op_name, one.inplace, one.batch_invariant) for one in declared} == said
    assert {op for _, op, *_ in said} == set(OPS)


def test_the_manifest_lists_the_dtypes_that_the_predicates_take() -> None:
    """A static answer and a live one agree on dtypes."""
    provider = read_manifest(MANIFEST.read_bytes(), str(MANIFEST)).providers["vllm_c"]
    assert provider.dtypes == tuple(str(dtype).removeprefix("torch.") for dtype in predicates.DTYPES)


def run(code: str) -> str:
    """Return what a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_hooks_imports_no_kernel_no_torch_and_no_cupy() -> None:
    """A process that only lists providers, or runs on another platform, pays nothing for this one."""
    names = ("torch", "cupy", "cupy_backends", "vllm_ir_provider_vllm_c.kernels")
    code = f"import sys, vllm_ir_provider_vllm_c.hooks\nprint([name for name in {names} if name in sys.modules])"
    assert run(code) == "[]"


def test_importing_every_module_starts_nothing() -> None:
    """No CUDA context and no driver: declarations alone, also once the hook has been asked."""
    code = (
        "import sys, torch, vllm_ir\n"
        "from vllm_ir_provider_vllm_c import hooks\n"
        "hooks.vllm_ir_implementations(None)\n"
        "print(torch.cuda.is_initialized(), 'libcuda.so' in open('/proc/self/maps').read())"
    )
    assert run(code) == "False False"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, and nothing refuses")
def test_a_machine_without_a_gpu_is_told_so() -> None:
    """`vllm-ir explain` names what the kernels are for, and what this machine is."""
    code = "from vllm_ir.cli.main import main\nmain(['explain', 'rms_norm', '--json'])"
    said = " ".join(run(code).split())
    assert "'vllm_c' of vllm-ir-provider-vllm-c is for cuda >=7.5; this machine is" in said


def test_two_cupys_are_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """They write over each other's files, so that either may be half the other."""
    monkeypatch.setattr(availability, "installed", lambda: ("cupy-cuda12x", "cupy-cuda13x"))
    verdict = availability.supported()
    assert isinstance(verdict, Unsupported)
    assert str(verdict).startswith("cupy-cuda12x and cupy-cuda13x are both installed")


def test_only_what_is_installed_counts() -> None:
    """Names are asked of the installed metadata."""
    assert availability.installed(("pytest", "no-such-distribution")) == ("pytest",)


def test_a_missing_compiler_is_refused_unless_cubins_were_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is missing, what installs it, and that cubins built ahead of time do without."""

    def absent() -> None:
        """Say that there is no NVRTC."""
        msg = "NVRTC is not found"
        raise ImportError(msg)

    monkeypatch.setattr(availability, "installed", lambda: ("cupy-cuda13x",))
    monkeypatch.setattr(compiling, "include_folders", absent)
    monkeypatch.setattr(cubins, "BUILT", tmp_path)
    verdict = availability.supported()
    assert isinstance(verdict, Unsupported)
    assert "[cuda13]" in str(verdict)
    (tmp_path / "gate.cubin").touch()
    assert availability.supported() is True
    for closed in (tmp_path / "gate.cubin", tmp_path):  # root is let in everywhere
        monkeypatch.setattr(os, "access", lambda path, _, closed=closed: path != closed)
        verdict = availability.supported()
        assert isinstance(verdict, Unsupported)
        assert str(verdict).startswith(f"{closed} was built ahead of time and cannot be read (chmod a+rX {closed})")
