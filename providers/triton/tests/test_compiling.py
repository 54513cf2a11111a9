"""Triton compiles every kernel for every GPU named here, in the registers that are written down, without a GPU."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from products import changed, narrow_products
from registers import ARCHS, COMPILER, measured, nowhere, one_parser_at_a_time, shown, target, written
from vllm_ir.plugins.manifest import FILE
from vllm_ir.plugins.manifest_file import read_manifest
from vllm_ir_provider_triton import compiling, geometry, rotation
from vllm_ir_provider_triton.variants import GELU, GELU_TANH, SILU

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from vllm_ir_provider_triton.variants import Variant

BUDGETS = Path(__file__).parent / "budgets.toml"
README = Path(__file__).parents[1] / "README.md"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPSILON = 1e-6
NEOX = True

pytestmark = pytest.mark.triton


def norm(size: int, dtype: torch.dtype, arch: str, *, fused: bool, fixed: bool, weight: Any = None) -> Variant:
    """Return the variant of a norm of many rows."""
    x = nowhere(1024, size, dtype=dtype)
    weight = nowhere(size, dtype=dtype if weight is None else weight)
    op, residual = ("fused_add_rms_norm", x) if fused else ("rms_norm", None)
    return geometry.norm(op, x, residual, weight, EPSILON, None, x, residual, arch, fixed=fixed).variant


def gate(activation: int, dtype: torch.dtype, arch: str, *, size: int = 4096, gap: int = 0) -> Variant:
    """Return the variant of a gated activation, of rows that lie at two distances for a gap."""
    x = nowhere(8, 64, 2 * size, dtype=dtype)[:, : 64 - gap]
    return geometry.gate(activation, x, nowhere(8, 64 - gap, size, dtype=dtype), arch, fixed=False).variant


def rotary(dtype: torch.dtype, arch: str, *, neox: bool, size: int = 128, turned: int = 128) -> Variant:
    """Return the variant of a rotation in place."""
    x, positions = nowhere(64, 32 * size, dtype=dtype), nowhere(64, dtype=torch.int64)
    cache = nowhere(64, turned, dtype=dtype)
    return rotation.plan(positions, x, x, size, turned, cache, (x, x), arch, neox=neox).variant


def variants(arch: str) -> dict[str, Variant]:
    """Return a variant of every kernel for every dtype, and of bfloat16 every other specialisation, by name."""
    found = {}
    for dtype in DTYPES:
        name = geometry.dtype_name(dtype)
        for op, fused in (("rms_norm", False), ("fused_add_rms_norm", True)):
            found[f"{op} {name} 8192"] = norm(8192, dtype, arch, fused=fused, fixed=False)
            found[f"{op} {name} 8192 invariant"] = norm(8192, dtype, arch, fused=fused, fixed=True)
        for op, activation in (("silu", SILU), ("gelu", GELU), ("gelu_tanh", GELU_TANH)):
            found[f"{op} {name}"] = gate(activation, dtype, arch)
        found[f"rotary {name} neox"] = rotary(dtype, arch, neox=True)
    half = torch.bfloat16
    return {
        **found,
        "rms_norm bfloat16 128": norm(128, half, arch, fused=False, fixed=False),
        "rms_norm bfloat16 4096 invariant": norm(4096, half, arch, fused=False, fixed=True),
        "rms_norm bfloat16 1001 unaligned": norm(1001, half, arch, fused=False, fixed=False),
        "rms_norm bfloat16 4096 float32 weight": norm(4096, half, arch, fused=False, fixed=False, weight=torch.float32),
        "fused_add_rms_norm bfloat16 16384": norm(16384, half, arch, fused=True, fixed=False),
        "fused_add_rms_norm bfloat16 20480 loop": norm(20480, half, arch, fused=True, fixed=False),
        "fused_add_rms_norm bfloat16 20480 loop invariant": norm(20480, half, arch, fused=True, fixed=True),
        "silu bfloat16 two strides": gate(SILU, half, arch, gap=4),
        "silu bfloat16 1001 unaligned": gate(SILU, half, arch, size=1001),
        "rotary bfloat16": rotary(half, arch, neox=False),
        "rotary bfloat16 unaligned": rotary(half, arch, neox=True, size=80, turned=20),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder for what is compiled, which nobody compiled before."""
    return tmp_path_factory.mktemp("triton")


@pytest.mark.skipif(
    find_spec("triton") is not None and not metadata.version("triton").startswith(COMPILER),
    reason=f"the registers are those of Triton {COMPILER}*: pip install 'vllm-ir-provider-triton[test]'",
)
def test_every_kernel_compiles_in_its_registers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is exact, so that a change of a kernel shows what it costs; nothing spills."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    one_parser_at_a_time(monkeypatch)
    found = measured(variants, cache)
    budgets = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
    assert found == budgets, written(found)
    assert len(found) == 35
    assert {counts[1] for row in found.values() for counts in row.values()} == {0}


def test_the_readme_shows_the_registers() -> None:
    """The table of the README is that of the file."""
    table = "\n".join(shown(tomllib.loads(BUDGETS.read_text(encoding="utf-8"))))
    assert table in README.read_text(encoding="utf-8"), table


def test_the_compiler_is_told_what_may_not_be_contracted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No multiply-add where two roundings are meant, exact division, and no flushing of subnormal numbers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    turned = compiling.compile_variant(rotary(torch.float32, "sm_90", neox=True), target("sm_90"))
    assert turned.metadata.enable_fp_fusion is False
    assert not re.search(r"\bfma\.", turned.asm["ptx"])
    assert ".ftz" not in turned.asm["ptx"]
    active = compiling.compile_variant(gate(SILU, torch.float32, "sm_90"), target("sm_90")).asm["ptx"]
    assert "div.rn.f32" in active
    assert "div.full" not in active
    amd = compiling.compile_variant(rotary(torch.float32, "gfx942", neox=True), target("gfx942")).asm["amdgcn"]
    assert not re.search(r"v_(pk_)?fma|v_fmac|v_mad_f32|v_mac_f32", amd)


WIDENED = {
    "norm.py": ("row = tl.program_id(0).to(tl.int64)", "row = tl.program_id(0)"),
    "gate.py": ("(program // columns).to(tl.int64)", "(program // columns)"),
    "rotary.py": ("(program // blocks).to(tl.int64)", "(program // blocks)"),
}


@pytest.mark.parametrize("file", WIDENED)
def test_what_grows_with_the_rows_is_multiplied_in_64_bits(
    file: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the programs as they are; without their one conversion to 64 bits the same reading finds products of 32."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    half = torch.bfloat16
    variant = {
        "norm.py": norm(8192, half, "sm_90", fused=True, fixed=False),
        "gate.py": gate(SILU, half, "sm_90", gap=4),
        "rotary.py": rotary(half, "sm_90", neox=True),
    }[file]
    ttir = compiling.compile_variant(variant, target("sm_90")).asm["ttir"]
    assert "tt.get_program_id" in ttir
    assert narrow_products(ttir) == []
    old, new = WIDENED[file]
    module = changed(file, old, new, tmp_path)
    monkeypatch.setattr(compiling, "function", lambda program: getattr(module, program))
    assert narrow_products(compiling.compile_variant(variant, target("sm_90")).asm["ttir"])


def test_aligned_rows_are_read_by_16_bytes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four words at a time, and nothing that grows with the heads or rows is read otherwise."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    for variant in (
        norm(8192, torch.bfloat16, "sm_90", fused=True, fixed=True),
        norm(4096, torch.float32, "sm_90", fused=False, fixed=False),
        gate(SILU, torch.bfloat16, "sm_90"),
        rotary(torch.bfloat16, "sm_90", neox=True),
    ):
        ptx = compiling.compile_variant(variant, target("sm_90")).asm["ptx"]
        loads = re.findall(r"ld\.global[.\w:]*", ptx)
        wide = [each for each in loads if each.endswith(".v4.b32")]
        narrow = [each for each in loads if each not in wide]
        assert wide, variant
        # A token has one position and one row of angles, which all its heads share.
        assert set(narrow) == ({"ld.global.b64", "ld.global.b16"} if variant.program == "rotary" else set()), narrow


def test_the_manifest_names_what_triton_compiles_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel for each of AMD's architectures that the manifest lists, and for the least of NVIDIA's."""
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    file = Path(compiling.__file__).parent / FILE
    provider = read_manifest(file.read_bytes(), str(file)).providers["triton"]
    listed = provider.platforms["rocm"].gfx
    assert listed
    assert set(ARCHS) - set(listed) == {"sm_80", "sm_90", "sm_100", "sm_120"}
    for arch in listed:
        kernel = compiling.compile_variant(
            norm(576, torch.bfloat16, arch, fused=True, fixed=True),
            GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32),
        )
        assert kernel.asm["hsaco"]
    assert provider.platforms["cuda"].minimum == (8, 0)
