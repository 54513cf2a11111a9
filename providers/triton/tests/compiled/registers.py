"""What Triton makes of variants for GPUs that are not here: registers, spills, and tables of them.

Which variants, is for the tests to say.
"""

from __future__ import annotations

import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm_ir_provider_triton import compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from vllm_ir_provider_triton.variants import Variant

Table = dict[str, dict[str, list[int]]]
"""Registers and what is spilled, by variant and architecture."""

COMPILER = "3.9."
ARCHS = {"sm_80": 80, "sm_90": 90, "sm_100": 100, "sm_120": 120, "gfx942": 64, "gfx950": 64, "gfx1201": 32}
"""Compute capability, or lanes of a warp."""


def target(arch: str) -> Any:
    """Return what Triton calls an architecture."""
    from triton.backends.compiler import GPUTarget

    return GPUTarget("hip", arch, ARCHS[arch]) if arch.startswith("gfx") else GPUTarget("cuda", ARCHS[arch], 32)


def nowhere(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without memory."""
    return torch.empty(sizes, dtype=dtype, device="meta")


def usage(kernel: Any, folder: Path) -> list[int]:
    """Return registers a thread and bytes or registers that are spilled of a compiled kernel."""
    if "amdgcn" in kernel.asm:
        counts = [re.search(rf"\.{name}: +(\d+)", kernel.asm["amdgcn"]) for name in ("vgpr_count", "vgpr_spill_count")]
        return [int(count[1]) for count in counts if count is not None]
    spec = find_spec("triton")
    assert spec is not None
    assert spec.origin is not None
    tool = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    file = folder / f"{kernel.hash}.cubin"
    file.write_bytes(kernel.asm["cubin"])
    done = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True)
    counts = [re.search(rf"{name}:(\d+)", done.stdout) for name in ("REG", "STACK")]
    return [int(count[1]) for count in counts if count is not None]


def one_parser_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one thread parse: CPython 3.11 keeps the depth of its parser per process (python/cpython#106905)."""
    from triton.runtime.jit import JITCallable

    lock, parse = threading.Lock(), JITCallable.parse

    def locked(function: Any) -> Any:
        with lock:
            return parse(function)

    monkeypatch.setattr(JITCallable, "parse", locked)


def measured(variants: Callable[[str], dict[str, Variant]], folder: Path) -> Table:
    """Return the usage of every variant for every architecture."""
    wanted = [(name, arch, variant) for arch in ARCHS for name, variant in variants(arch).items()]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda each: usage(compiling.compile_variant(each[2], target(each[1])), folder), wanted)
        table: Table = {}
        for (name, arch, _), counts in zip(wanted, found, strict=True):
            table.setdefault(name, {})[arch] = counts
    return table


def written(table: Table) -> str:
    """Return a table as the lines of its file."""
    return "".join(
        f'"{name}" = {{ {", ".join(f"{arch} = {counts}" for arch, counts in row.items())} }}\n'
        for name, row in table.items()
    )


def shown(budgets: Table) -> list[str]:
    """Return the table of the README: the most registers over dtypes, by kernel and architecture."""
    most: dict[str, dict[str, int]] = {}
    for name, row in budgets.items():
        kernel, _, *rest = name.split()
        line = most.setdefault(" ".join([kernel, *rest]), {})
        for arch, (registers, _) in row.items():
            line[arch] = max(registers, line.get(arch, 0))
    lines = [f"| kernel | {' | '.join(ARCHS)} |", "|---" * (1 + len(ARCHS)) + "|"]
    return [*lines, *(f"| {name} | {' | '.join(str(row[arch]) for arch in ARCHS)} |" for name, row in most.items())]
