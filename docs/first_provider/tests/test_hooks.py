"""The hooks: they say what the manifest says, and load nothing before they are asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vllm_ir_first_provider
from vllm_ir import IrOpImpl, current_platform
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_first_provider import hooks, kernels

MANIFEST = Path(vllm_ir_first_provider.__file__).parent / FILE


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


def test_the_manifest_lists_the_dtypes_that_the_predicate_takes() -> None:
    """A static answer and a live one agree on dtypes."""
    provider = read_manifest(MANIFEST.read_bytes(), str(MANIFEST)).providers["first_provider"]
    assert provider.dtypes == tuple(str(dtype).removeprefix("torch.") for dtype in kernels.DTYPES)


def test_declaring_touches_no_registry() -> None:
    """The decorator returns a frozen value; vllm-ir registers it when it loads the distribution."""
    assert isinstance(kernels.rms_norm, IrOpImpl)
    assert kernels.rms_norm.provider == "first_provider"


def test_importing_the_hooks_imports_no_kernel_and_no_torch() -> None:
    """A process that only lists providers, or runs on another platform, pays nothing for this one."""
    code = (
        "import sys, vllm_ir_first_provider.hooks\n"
        "print([name for name in ('torch', 'vllm_ir_first_provider.kernels') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
