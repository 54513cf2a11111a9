"""The quantising programs and qk_norm_rope, compiled for every GPU named here, as in `test_compiling.py`."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from products import changed, narrow_products
from registers import COMPILER, measured, nowhere, one_parser_at_a_time, shown, target, written
from vllm_ir_provider_triton import compiling, head_norms, quantization

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from vllm_ir_provider_triton.variants import Variant

BUDGETS = Path(__file__).parent / "quant_budgets.toml"
README = Path(__file__).parents[1] / "README.md"
HALF, SINGLE = torch.bfloat16, torch.float32
E4M3FN, E4M3FNUZ, E5M2 = torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2
EPSILON = 1e-6
ROWS = 1024

pytestmark = pytest.mark.triton


def usual(arch: str) -> torch.dtype:
    """Return the format that an architecture multiplies."""
    return E4M3FNUZ if arch == "gfx942" else E4M3FN


def one() -> torch.Tensor:
    """Return one value."""
    return nowhere(1, dtype=SINGLE)


def scaled(
    dtype: torch.dtype, arch: str, written: torch.dtype | None = None, *, gated: bool = False, channels: bool = False
) -> Variant:
    """Return the variant of a quantisation by given scales."""
    size = 4096
    x, out = nowhere(ROWS, size * (1 + gated), dtype=dtype), nowhere(ROWS, size, dtype=written or usual(arch))
    scale = nowhere(size, dtype=SINGLE) if channels else one()
    return quantization.scaled(x, out, scale, arch, gated=gated).variant


def by_tensor(arch: str, *, gated: bool, size: int = 4096) -> tuple[Variant, Variant]:
    """Return the variants of the two launches with one scale for a tensor, in bfloat16."""
    x, out = nowhere(ROWS, size * (1 + gated), dtype=HALF), nowhere(ROWS, size, dtype=usual(arch))
    largest = nowhere(1, dtype=torch.int32)
    second = quantization.scaled(x, out, largest, arch, gated=gated, scale_out=one(), bound=one())
    return quantization.peak(x, largest, arch, gated=gated).variant, second.variant


def grouped(
    size: int, arch: str, group_size: int | None = None, *, gated: bool = False, power: bool = False
) -> Variant:
    """Return the variant of a quantisation by the largest of rows or groups, in bfloat16."""
    x, out = nowhere(ROWS, size * (1 + gated), dtype=HALF), nowhere(ROWS, size, dtype=usual(arch))
    return quantization.grouped(x, out, one(), None, group_size, arch, gated=gated, power=power).variant


def norm(size: int, dtype: torch.dtype, arch: str, *, fused: bool, dynamic: bool) -> Variant:
    """Return the variant of a norm with quantisation."""
    x, out = nowhere(ROWS, size, dtype=dtype), nowhere(ROWS, size, dtype=usual(arch))
    residual = x if fused else None
    weight = nowhere(size, dtype=dtype)
    return quantization.norm(x, residual, weight, EPSILON, out, residual, one(), None, arch, dynamic=dynamic).variant


def heads(arch: str, *, neox: bool, turned: int = 128) -> Variant:
    """Return the variant of normalised and turned heads of 128 elements, in place, in bfloat16."""
    x, positions, weight = nowhere(64, 4096, dtype=HALF), nowhere(64, dtype=torch.int64), nowhere(128, dtype=HALF)
    cache = nowhere(64, turned, dtype=HALF)
    given = (positions, x, x, weight, weight, EPSILON, 128, turned, cache, (x, x), arch)
    return head_norms.plans(*given, neox=neox)[0].variant


def variants(arch: str) -> dict[str, Variant]:
    """Return a variant of every kernel and specialisation by name."""
    return {
        "scaled float32": scaled(SINGLE, arch),
        "scaled bfloat16": scaled(HALF, arch),
        "scaled bfloat16 by integers": scaled(HALF, arch, E4M3FNUZ),
        "scaled bfloat16 channels": scaled(HALF, arch, channels=True),
        "scaled bfloat16 silu": scaled(HALF, arch, gated=True),
        "peak bfloat16": by_tensor(arch, gated=False)[0],
        "scaled bfloat16 by tensor": by_tensor(arch, gated=False)[1],
        "grouped bfloat16 8192": grouped(8192, arch),
        "grouped bfloat16 silu 14336": grouped(14336, arch, gated=True),
        "grouped bfloat16 silu 28672 loop": grouped(28672, arch, gated=True),
        "grouped bfloat16 groups": grouped(4096, arch, 128),
        "grouped bfloat16 silu groups power": grouped(4096, arch, 128, gated=True, power=True),
        "norm_quant bfloat16 8192": norm(8192, HALF, arch, fused=False, dynamic=False),
        "norm_quant bfloat16 8192 dynamic": norm(8192, HALF, arch, fused=False, dynamic=True),
        "norm_quant bfloat16 8192 fused dynamic": norm(8192, HALF, arch, fused=True, dynamic=True),
        "norm_quant float32 16384 fused dynamic": norm(16384, SINGLE, arch, fused=True, dynamic=True),
        "qk_norm_rope bfloat16 neox": heads(arch, neox=True),
        "qk_norm_rope bfloat16": heads(arch, neox=False),
        "qk_norm_rope bfloat16 half": heads(arch, neox=True, turned=64),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder for what is compiled, which nobody compiled before."""
    return tmp_path_factory.mktemp("triton_quant")


@pytest.mark.skipif(
    find_spec("triton") is not None and not metadata.version("triton").startswith(COMPILER),
    reason=f"the registers are those of Triton {COMPILER}*: pip install 'vllm-ir-provider-triton[test]'",
)
def test_every_quantising_kernel_compiles_in_its_registers(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where no instruction rounds to 8 bits; the table is exact, and nothing spills."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    one_parser_at_a_time(monkeypatch)
    found = measured(variants, cache)
    budgets = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
    assert found == budgets, written(found)
    assert len(found) == 19
    assert {counts[1] for row in found.values() for counts in row.values()} == {0}


def test_the_readme_shows_the_registers_of_quantisation() -> None:
    """The table of the README is that of the file."""
    table = "\n".join(shown(tomllib.loads(BUDGETS.read_text(encoding="utf-8"))))
    assert table in README.read_text(encoding="utf-8"), table


def test_an_instruction_rounds_where_there_is_one_that_saturates(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NVIDIA from 8.9 on, for two formats; everywhere else integers do, which is held over all numbers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    for arch, dtype, name in (
        ("sm_80", E4M3FN, None),
        ("sm_90", E4M3FN, "e4m3x2"),
        ("sm_90", E5M2, "e5m2x2"),
        ("sm_90", E4M3FNUZ, None),
        ("sm_120", E4M3FN, "e4m3x2"),
    ):
        variant = scaled(HALF, arch, dtype)
        assert variant.constants[1] == (name is not None)
        ptx = compiling.compile_variant(variant, target(arch)).asm["ptx"]
        rounding = set(re.findall(r"cvt[\w.]*\.(e\dm\dx2)\.f32", ptx))
        assert rounding == ({name} if name else set()), (arch, dtype)
        assert name is None or f"cvt.rn.satfinite.{name}.f32" in ptx
        assert "min.NaN.f32" in ptx  # what is NaN stays NaN
    assert quantization.instruction("sm_89", "float8_e4m3fn")
    assert not quantization.instruction("gfx950", "float8_e4m3fn")


def test_products_are_rounded_and_divisions_exact(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No multiply-add where two roundings are meant, no approximate reciprocal, no flushing of subnormal numbers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    for variant in (
        scaled(SINGLE, "sm_90"),
        scaled(SINGLE, "sm_90", channels=True),
        by_tensor("sm_90", gated=False)[1],
        grouped(4096, "sm_90"),
        grouped(4096, "sm_90", 128),
        norm(4096, SINGLE, "sm_90", fused=True, dynamic=True),
        heads("sm_90", neox=True),
    ):
        ptx = compiling.compile_variant(variant, target("sm_90")).asm["ptx"]
        assert not re.search(r"\bfma\.|\.ftz|div\.full|rcp\.approx", ptx), variant
        assert re.search(r"(div|rcp)\.rn\.f32", ptx), variant


WIDENED = {
    "scaled.py": ("(program // columns).to(tl.int64)", "(program // columns)"),
    "peak.py": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    "grouped.py": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    "norm_quant.py": ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
    "qk_norm_rope.py": ("(program // blocks).to(tl.int64)", "(program // blocks)"),
}


@pytest.mark.parametrize("file", WIDENED)
def test_what_grows_with_the_rows_has_64_bits_in_quantisation(
    file: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the programs as they are; without their one conversion to 64 bits the same reading finds products of 32."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    variant = {
        "scaled.py": scaled(HALF, "sm_90"),
        "peak.py": by_tensor("sm_90", gated=False, size=128)[0],
        "grouped.py": grouped(4096, "sm_90"),
        "norm_quant.py": norm(8192, HALF, "sm_90", fused=True, dynamic=True),
        "qk_norm_rope.py": heads("sm_90", neox=True),
    }[file]
    ttir = compiling.compile_variant(variant, target("sm_90")).asm["ttir"]
    assert "tt.get_program_id" in ttir
    assert narrow_products(ttir) == []
    module = changed(file, *WIDENED[file], tmp_path)
    monkeypatch.setattr(compiling, "function", lambda program: getattr(module, program))
    assert narrow_products(compiling.compile_variant(variant, target("sm_90")).asm["ttir"])


def test_aligned_rows_are_quantised_by_16_bytes(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read by 16 bytes, and what is written of one such access is written at once."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    for variant in (
        scaled(HALF, "sm_90"),
        by_tensor("sm_90", gated=False)[1],
        grouped(8192, "sm_90"),
        grouped(4096, "sm_90", 128, gated=True),
        norm(8192, HALF, "sm_90", fused=True, dynamic=True),
    ):
        ptx = compiling.compile_variant(variant, target("sm_90")).asm["ptx"]
        loads, stores = (set(re.findall(rf"{kind}\.global[.\w:]*", ptx)) for kind in ("ld", "st"))
        assert {each for each in loads if not each.endswith(".v4.b32")} <= {"ld.global.b32"}, (variant, loads)
        assert any(each.endswith(".v4.b32") for each in loads)
        assert not {each for each in stores if each.endswith((".b8", ".b16"))}, (variant, stores)
