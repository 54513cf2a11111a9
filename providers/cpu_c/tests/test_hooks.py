"""The hooks: they say what the manifest says, load nothing early, and put the kernels before native on a CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import vllm_ir_provider_cpu_c
from vllm_ir import current_platform
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_provider_cpu_c import hooks, predicates

MANIFEST = Path(vllm_ir_provider_cpu_c.__file__).parent / FILE


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
    assert len(said) == 16


def test_the_manifest_lists_the_dtypes_that_the_predicates_take() -> None:
    """A static answer and a live one agree on dtypes."""
    provider = read_manifest(MANIFEST.read_bytes(), str(MANIFEST)).providers["cpu_c"]
    assert provider.dtypes == tuple(str(dtype).removeprefix("torch.") for dtype in predicates.DTYPES)


def test_importing_the_hooks_imports_no_kernel_and_no_torch() -> None:
    """A process that only lists providers, or runs on another platform, pays nothing for this one."""
    code = (
        "import sys, vllm_ir_provider_cpu_c.hooks\n"
        "print([name for name in ('torch', 'vllm_ir_provider_cpu_c._native') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_kernels_come_before_native_in_eager_mode_alone() -> None:
    """Installed is enough: on a CPU every op runs here, and a graph that Inductor compiles keeps native."""
    code = (
        "import torch\n"
        "from vllm_ir import ops\n"
        "for op in [each for each in map(ops.__getattribute__, ops.__all__) if 'cpu_c' in each.get_priority()]:\n"
        "    args = op.generate_inputs(num_tokens=2)\n"
        "    print(op.explain(*args).selected, op.explain(*args, compiling=True).selected)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["cpu_c", "native"] * 16, done.stderr
