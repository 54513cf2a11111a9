"""NVRTC compiles every kernel for every architecture in the registers that are written down; and what it refuses."""

from __future__ import annotations

import pickle
import re
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from vllm_ir_provider_vllm_c import compiling, cubins, variants
from vllm_ir_provider_vllm_c.compiling import Cubin, compile_program
from vllm_ir_provider_vllm_c.errors import CannotCompile, CompilerMissing
from vllm_ir_provider_vllm_c.variants import PROGRAMS, Program

BUDGETS = Path(__file__).parent / "budgets.toml"
README = Path(__file__).parent.parent / "README.md"
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
COMPILER = (13, 0)
USED = re.compile(r"Used (\d+) registers")
SPILLED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


def compiler() -> tuple[int, int] | None:
    """Return the version of NVRTC, or None where there is none with its headers."""
    try:
        compiling.include_folders()
        return compiling.nvrtc_version()
    except ImportError:
        return None


needs_nvrtc = pytest.mark.skipif(
    compiler() != COMPILER,
    reason=f"needs NVRTC {COMPILER[0]}.{COMPILER[1]} with its headers: pip install 'vllm-ir-provider-vllm-c[test]'",
)


def usage(cubin: Cubin) -> dict[str, tuple[int, int]]:
    """Return registers and bytes spilled of each kernel, by its expression."""
    called = {name: expression for expression, name in cubin.names.items()}
    found = {}
    for part in cubin.log.split("Compiling entry function")[1:]:
        name, registers, spilled = re.search(r"'(\w+)'", part), USED.search(part), SPILLED.search(part)
        assert name, part
        assert registers, part
        assert spilled, part
        found[called[name[1]]] = (int(registers[1]), int(spilled[1]) + int(spilled[2]))
    return found


def families(program: Program, cubin: Cubin) -> dict[str, tuple[int, int]]:
    """Return the most registers and bytes spilled of kernels that differ only in alignment and packs kept."""
    most: dict[str, tuple[int, int]] = {}
    for expression, (registers, spilled) in usage(cubin).items():
        family = (
            expression.split("<")[0] if program.source != "gate" else expression.rsplit(", ", 1)[1].rstrip(">").lower()
        )
        before = most.get(f"{family} {program.dtype}", (0, 0))
        most[f"{family} {program.dtype}"] = (max(before[0], registers), max(before[1], spilled))
    return most


def measured(arch: str) -> dict[str, tuple[int, int]]:
    """Compile everything for an architecture and return what the table holds of it."""
    found: dict[str, tuple[int, int]] = {}
    for program in PROGRAMS:
        cubin = compile_program(program, arch)
        assert cubin.code[:4] == b"\x7fELF"
        used = usage(cubin)
        assert set(used) == set(program.expressions)
        assert not [each for each, (_, spilled) in used.items() if spilled and ", true, " in each], "by 16 bytes"
        found |= families(program, cubin)
    return found


def table() -> dict[str, dict[str, list[int]]]:
    """Return the table: kernels, then architectures, then registers and bytes spilled."""
    kernels: dict[str, dict[str, list[int]]] = {}
    for line in BUDGETS.read_text(encoding="utf-8").splitlines():
        if named := re.fullmatch(r'"(.*)" = \{(.*)\}', line):
            cells = re.findall(r"(sm_\d+) = \[(\d+), (\d+)\]", named[2])
            kernels[named[1]] = {arch: [int(registers), int(spilled)] for arch, registers, spilled in cells}
    return kernels


@needs_nvrtc
def test_every_kernel_compiles_for_every_architecture_within_its_budget() -> None:
    """Registers and spills are those of the table, exactly: fewer is a line to change, more a question to answer."""
    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(ARCHS, pool.map(measured, ARCHS), strict=True))
    kernels = {name: {arch: list(found[arch][name]) for arch in ARCHS} for name in found[ARCHS[0]]}
    lines = [
        f'"{name}" = {{ {", ".join(f"{arch} = {numbers}" for arch, numbers in row.items())} }}'
        for name, row in kernels.items()
    ]
    assert table() == kernels, "the table would be:\n" + "\n".join(lines)


def test_the_table_has_no_block_without_registers_and_no_spill_worth_a_cache_line() -> None:
    """A block of 1024 threads has 64 registers a thread; only unaligned rows of float32 spill, a few bytes."""
    cells = [(name, registers, spilled) for name, row in table().items() for registers, spilled in row.values()]
    assert all(registers <= 64 for _, registers, _ in cells)
    assert {name for name, _, spilled in cells if spilled} <= {"rms_norm float32", "fused_add_rms_norm float32"}
    assert all(spilled <= 64 for *_, spilled in cells)


def test_the_readme_says_how_many_registers_what_quantises_takes() -> None:
    """The most over dtypes and architectures, kernel by kernel."""
    most: dict[str, int] = {}
    for name, row in table().items():
        kernel = name.split(" ")[0]
        most[kernel] = max(most.get(kernel, 0), *(registers for registers, _ in row.values()))
    said: dict[str, int] = {}
    for line in README.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"\| [^|]*(?:_fp8`|_rope`|False`) \| ([^|]*) \| ([\d, ]+) \| [^|]* \|", line):
            said |= zip(re.findall(r"`(\w+)`", found[1]), map(int, found[2].split(", ")), strict=True)
    ours = ("quant", "tensor_scale", "qk_norm_rope")
    assert said == {kernel: registers for kernel, registers in most.items() if kernel.endswith(ours)}


@needs_nvrtc
def test_what_the_compiler_refuses_is_an_error_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, the architecture and the compiler's first lines are in the sentence, and it pickles."""
    with pytest.raises(
        CannotCompile, match=r"does not compile rotary_float32 for sm_10:\n[^$]*Use an NVRTC that knows"
    ):
        compile_program(Program("rotary", "float32"), "sm_10")
    monkeypatch.setattr(variants, "source", lambda _: "this is no CUDA C\n")
    with pytest.raises(CannotCompile, match=r"rotary\.cu[^$]*do not fit: report it with this log") as caught:
        compile_program(Program("rotary", "float32"), "sm_90")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (str(again), again.arch, again.program) == (str(caught.value), "sm_90", "rotary_float32")


@needs_nvrtc
def test_a_header_that_the_compiler_misses_is_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another NVRTC would not help."""
    monkeypatch.setattr(compiling, "include_folders", lambda: ())
    with pytest.raises(CannotCompile, match=r"could not open source file[^$]*Install CUDA's headers") as caught:
        compile_program(Program("rotary", "float32"), "sm_90")
    assert "Use an NVRTC" not in str(caught.value)


def headers(root: Path, version: int | None, names: tuple[str, ...] = compiling.HEADERS) -> Path:
    """Make a folder of headers that say of which CUDA they are."""
    root.mkdir(parents=True)
    for name in names:
        (root / name).write_text("// a header\n")
    if version is not None:
        (root / "cuda_runtime_api.h").write_text(f"/* */\n#define CUDART_VERSION  {version}\n")
    return root


def test_headers_of_another_cuda_or_incomplete_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever are there are named with what is wrong; a toolkit is asked last, and only for its own major version."""
    wheel = tmp_path / "nvidia" / "cu13" / "include"
    spec = ModuleSpec("nvidia", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "nvidia")]
    monkeypatch.setattr(compiling, "find_spec", lambda _: spec)
    monkeypatch.setattr(compiling, "nvrtc_version", lambda: (13, 0))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "none"))
    monkeypatch.setattr(compiling, "TOOLKIT", headers(tmp_path / "cuda12", 12040))
    find = compiling.include_folders.__wrapped__
    headers(wheel, 13000, ("cuda_bf16.h",))
    with pytest.raises(
        ImportError,
        match=rf"cuda_bf16.h, cuda_fp16.h, cuda_fp8.h are not .*{wheel} lacks cuda_fp16.h, .*cuda12 is of CUDA 12\.4",
    ):
        find()
    monkeypatch.setattr(compiling, "TOOLKIT", headers(tmp_path / "unknown", None))
    with pytest.raises(ImportError, match="unknown does not say of which CUDA it is"):
        find()
    monkeypatch.setattr(compiling, "TOOLKIT", headers(tmp_path / "cuda13", 13010))
    assert find() == (tmp_path / "cuda13",)
    (wheel / "cuda_fp16.h").touch()
    (wheel / "cuda_fp8.h").touch()
    assert find() == (wheel,)


def test_the_headers_have_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their version, and of every header and what is behind it."""
    root = headers(tmp_path / "include", 13000)
    monkeypatch.setattr(compiling, "include_folders", lambda: (root,))
    digest, found = compiling.headers_digest.__wrapped__, set()
    found.add(digest())
    for name in ("cuda_fp16.hpp", "cuda_bf16.h", "cuda_bf16.hpp"):
        (root / name).write_text("// changed\n")
        found.add(digest())
    (root / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13010\n")
    found.add(digest())
    assert len(found) == 5


@needs_nvrtc
def test_what_nvrtc_makes_is_kept_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way, without a driver: compiled, written for this user alone, and read the second time."""
    monkeypatch.setenv("VLLM_IR_CACHE", str(tmp_path))
    monkeypatch.setattr(cubins, "BUILT", tmp_path / "built")
    made = cubins.fetch(Program("rotary", "float32"), "sm_90")
    assert set(made.names) == set(Program("rotary", "float32").expressions)
    assert all(name.encode() in made.code for name in made.names.values())
    monkeypatch.setattr(compiling, "compile_program", None)
    again = cubins.fetch(Program("rotary", "float32"), "sm_90")
    assert (again.code, again.names) == (made.code, made.names)


def test_a_missing_compiler_or_header_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing, for which kernel, and what installs it."""

    def absent() -> None:
        """Say that there is no NVRTC."""
        msg = "NVRTC is not found (libnvrtc.so.13)"
        raise ImportError(msg)

    monkeypatch.setattr(compiling, "nvrtc", absent)
    with pytest.raises(
        CompilerMissing, match=r"cannot compile gate_float16 for sm_90: NVRTC is not found .*\[cuda13\]"
    ):
        compile_program(Program("gate", "float16"), "sm_90")


def test_the_key_changes_with_everything_that_makes_a_cubin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Architecture, program, compiler, options, sources, headers, and CUDA's headers."""
    keys = {
        compiling.key(Program("gate", "float32"), "sm_90", (13, 0)),
        compiling.key(Program("gate", "float32"), "sm_80", (13, 0)),
        compiling.key(Program("gate", "float16"), "sm_90", (13, 0)),
        compiling.key(Program("norm", "float32"), "sm_90", (13, 0)),
        compiling.key(Program("gate", "float32"), "sm_90", (13, 1)),
        compiling.key(Program("gate", "float32"), "sm_90", (13, 0), "another digest"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "OPTIONS", ("-std=c++17",))
        keys.add(compiling.key(Program("gate", "float32"), "sm_90", (13, 0)))
    monkeypatch.setattr(variants, "headers", lambda: {"rows.h": "// another\n"})
    keys.add(compiling.key(Program("gate", "float32"), "sm_90", (13, 0)))
    assert len(keys) == 8
