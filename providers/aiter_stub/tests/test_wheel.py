"""The stand-in, and what the README tells of roundings, against the real wheel; its files are read, never imported."""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path

import pytest
from vllm_ir_provider_aiter import symbols
from vllm_ir_provider_aiter.symbols import CALLED, READ

FAKE = Path(__file__).parent / "fake_site" / "aiter" / "ops"
CK = "aiter_meta/3rdparty/composable_kernel"

pytestmark = pytest.mark.package_index


def source(wheel: Path, name: str) -> str:
    """Return a file of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode("utf-8")


def definition(texts: list[str], name: str) -> ast.FunctionDef:
    """Return the one definition of a function."""
    nodes = [node for text in texts for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    found = [node for node in nodes if node.name == name]
    assert len(found) == 1
    return found[0]


def shape(node: ast.FunctionDef) -> tuple[list[tuple[str, str]], list[str], str]:
    """Return parameters with their types, defaults and the type of the result; `torch.Tensor` is `Tensor`."""
    kinds = [(each.arg, ast.unparse(each.annotation) if each.annotation else "") for each in node.args.args]
    result = ast.unparse(node.returns) if node.returns else ""
    return (
        [(name, kind.removeprefix("torch.")) for name, kind in kinds],
        [ast.unparse(each) for each in node.args.defaults],
        result.removeprefix("torch."),
    )


def modules(wheel: Path) -> list[str]:
    """Return the modules with AITER's ops."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if Path(name).match("aiter/ops/*.py") and name.count("/") == 2]
        return [archive.read(name).decode("utf-8") for name in names]


def test_the_wheel_is_the_version_that_was_read(wheel: Path) -> None:
    """Its metadata name it, and its package is the one that is looked for."""
    text = source(wheel, f"amd_aiter-{READ}.dist-info/METADATA")
    assert f"Name: amd-aiter\nVersion: {READ}\n" in text
    assert source(wheel, f"amd_aiter-{READ}.dist-info/top_level.txt").split()[0] == "aiter"


@pytest.mark.parametrize("called", CALLED.values(), ids=[each.name for each in CALLED.values()])
def test_the_stand_in_has_the_real_signature(wheel: Path, called: symbols.Called) -> None:
    """Parameters, their order, their types, their defaults and the result; and the call fits both."""
    real = definition(modules(wheel), called.name)
    fake = definition([path.read_text(encoding="utf-8") for path in FAKE.glob("*.py")], called.name)
    assert shape(fake) == shape(real)
    assert symbols.signature_of(real).takes(called)
    assert not real.args.kwonlyargs


def test_what_is_called_is_exported(wheel: Path) -> None:
    """By star imports, from modules that have no list of names."""
    init = source(wheel, "aiter/__init__.py")
    for module in ("rmsnorm", "activation", "pos_encoding"):
        assert f"from .ops.{module} import *" in init
        assert "__all__" not in source(wheel, f"aiter/ops/{module}.py")


def test_the_sources_are_found_as_in_an_installation(wheel: Path, tmp_path: Path) -> None:
    """What the provider does on an AMD machine: files on disk, parsed."""
    with zipfile.ZipFile(wheel) as archive:
        wanted = ("aiter/ops/", "aiter/__init__.py")
        archive.extractall(tmp_path, [name for name in archive.namelist() if name.startswith(wanted)])
    for called in CALLED.values():
        found = symbols.read(tmp_path / "aiter", called.name)
        assert found is not None
        assert found.takes(called)
        assert symbols.exports(tmp_path / "aiter", found)


def test_rounding_norms_round_to_nearest_and_only_up_to_8192(wheel: Path) -> None:
    """The flag chooses a pass that rounds as native does, and is passed over where a row needs two passes."""
    folder = f"{CK}/include/ck_tile/ops/rmsnorm2d/pipeline"
    text = source(wheel, f"{folder}/rmsnorm2d_fwd_pipeline_model_sensitive_pass.hpp")
    assert "float_to_bf16<bf16_rounding_mode::standard>(acc[idx] * inv_rms_[i_idx])" in text
    assert "type_convert<ComputeDataType>(tmp0) * gamma_" in text
    generator = source(wheel, f"{CK}/example/ck_tile/10_rmsnorm2d/generate.py")
    assert "(Traits_::kUseModelSensitiveRMSNorm == 0 || Traits_::kTwoPass)" in generator
    sizes = {line.split('"')[1] for line in generator.splitlines() if line.strip().endswith('": [') and '"' in line}
    assert max(int(each) for each in sizes if each.isdigit()) == 8192
    assert "big" in sizes


def test_the_fused_norm_rounds_its_sum_first(wheel: Path) -> None:
    """Which is why it is in no default list."""
    folder = f"{CK}/include/ck_tile/ops/rmsnorm2d/pipeline"
    text = source(wheel, f"{folder}/rmsnorm2d_fwd_pipeline_model_sensitive_pass.hpp")
    assert "acc(idx) = type_convert<ComputeDataType>(pre_out(idx));" in text
    assert text.index("acc(idx) = type_convert<ComputeDataType>(pre_out(idx));") < text.index("compute mean square")


def test_the_gate_is_not_rounded_before_the_multiply(wheel: Path) -> None:
    """Which is why it is in no default list either; and it loads by as many elements as is refused for."""
    text = source(wheel, "aiter_meta/csrc/kernels/activation_kernels.cu")
    assert "ACT_FN(x[j]) * ck_tile::type_convert<float>(y[j]);" in text
    launch = " ".join(text.replace("\\", " ").split())
    assert "int vec_size = nextPow2(d / 64); vec_size = vec_size > max_vec_size ? max_vec_size : vec_size;" in launch
    assert "max_vec_size = 8;" in text
    flags = json.loads(source(wheel, "aiter/jit/optCompilerConfig.json"))
    assert "'-ffast-math'" in flags["module_activation"]["flags_extra_hip"]
    assert flags["module_rmsnorm"]["flags_extra_hip"] == []
    assert flags["module_pos_encoding"]["flags_extra_hip"] == []


def test_rotations_are_in_the_dtype_of_the_heads(wheel: Path) -> None:
    """Operators of c10's halves round each product and each sum."""
    text = source(wheel, "aiter_meta/csrc/kernels/pos_encoding_kernels.cu")
    assert "const scalar_t x = arr[x_index];" in text
    assert "arr[x_index] = x * cos - y * sin;" in text
    assert "positions.data_ptr<int64_t>()" in text


def test_subnormal_values_are_zero_and_a_failed_build_ends_the_process(wheel: Path) -> None:
    """Two things of the builder that callers learn of nowhere else."""
    text = source(wheel, "aiter/jit/core.py")
    assert '"-fgpu-flush-denormals-to-zero"' in text
    assert "raise SystemExit(" in text
    assert '"AITER_JIT_DIR" in os.environ' in text
