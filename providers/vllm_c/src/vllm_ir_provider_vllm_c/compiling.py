"""From a program to a cubin for one architecture, by NVRTC through CuPy's low-level binding, without driver or GPU.

Cubins are asked for, never PTX, so that an NVRTC newer than the driver does no harm. Where cubins are kept is left to
`cubins`, who loads them to `loading`.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_ir_provider_vllm_c import variants
from vllm_ir_provider_vllm_c.errors import CannotCompile, CompilerMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_ir_provider_vllm_c.variants import Program

# Contraction would round a * b + c once where native rounds twice; the kernels wait for memory anyway.
OPTIONS: Final = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
REPORT: Final = "--ptxas-options=-v"
"""Puts registers and spills into the compiler's log."""

HEADERS: Final = ("cuda_bf16.h", "cuda_fp16.h", "cuda_fp8.h")
"""CUDA's headers that the sources include."""

TOOLKIT: Final = Path("/usr/local/cuda/include")


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled program.

    Args:
        code: what the driver loads.
        names: what the driver calls each kernel, by its expression.
        log: what the compiler said.
    """

    code: bytes
    names: Mapping[str, str]
    log: str = ""


def nvrtc() -> Any:
    """Return CuPy's binding of NVRTC.

    Raises:
        ImportError: CuPy is not installed, or NVRTC is not found.
    """
    binding = import_module("cupy_backends.cuda.libs.nvrtc")  # a compiled module, which no checker of types can read
    try:
        binding.getVersion()
    except (OSError, RuntimeError) as error:
        msg = f"NVRTC is not found ({str(error).splitlines()[0]})"
        raise ImportError(msg) from error
    return binding


def nvrtc_version() -> tuple[int, int]:
    """Return the version of NVRTC.

    Raises:
        ImportError: CuPy is not installed, or NVRTC is not found.
    """
    major, minor = nvrtc().getVersion()
    return major, minor


@lru_cache(maxsize=1)
def include_folders() -> tuple[Path, ...]:
    """Return the folders of CUDA's headers, those of the installed wheels before those of a toolkit.

    Raises:
        ImportError: the headers are nowhere, or of another CUDA than NVRTC.
    """
    spec = find_spec("nvidia")
    wheels = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    major = nvrtc_version()[0]
    roots = [folder / f"cu{major}" / "include" for folder in wheels]
    roots += [folder / "cuda_runtime" / "include" for folder in wheels]
    roots += [Path(sysconfig.get_path("data")) / "include", TOOLKIT]
    others: list[str] = []
    for root in roots:
        problem = wrong_headers(root, major)
        if problem is None:
            beside = [root / "cccl", root.parent.parent / "cuda_cccl" / "include"]
            return (root, *(each for each in beside if each.is_dir()))
        others += [problem] if problem else []
    found = f"; {', '.join(dict.fromkeys(others))}" if others else ""
    msg = f"CUDA's headers {', '.join(HEADERS)} are not found (the wheel nvidia-cuda-runtime has them){found}"
    raise ImportError(msg)


def wrong_headers(root: Path, major: int) -> str | None:
    """Return why a folder's headers do not fit an NVRTC of a major version, "" if it has none, None if they fit."""
    absent = [name for name in HEADERS if not (root / name).is_file()]
    if len(absent) == len(HEADERS):
        return ""
    if absent:
        return f"{root} lacks {absent[0]}"
    version = headers_version(root)
    if version is None:
        return f"{root} does not say of which CUDA it is"
    return None if version[0] == major else f"{root} is of CUDA {version[0]}.{version[1]}, and NVRTC of {major}"


def headers_version(root: Path) -> tuple[int, int] | None:
    """Return which CUDA a folder's headers are of, or None where they do not say."""
    try:
        text = (root / "cuda_runtime_api.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    said = re.search(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)", text, re.MULTILINE)
    return (int(said[1]) // 1000, int(said[1]) % 1000 // 10) if said else None


@lru_cache(maxsize=1)
def headers_digest() -> str:
    """Return what tells CUDA's headers from others: compiled code is half theirs.

    Raises:
        ImportError: the headers are nowhere, or of another CUDA than NVRTC.
    """
    root = include_folders()[0]
    made_of = hashlib.sha256(str(headers_version(root)).encode())
    for name in HEADERS:
        for file in (root / name, (root / name).with_suffix(".hpp")):  # the functions are in the second
            made_of.update(file.read_bytes() if file.is_file() else b"")
    return made_of.hexdigest()


def key(program: Program, arch: str, version: tuple[int, int], cuda_headers: str = "") -> str:
    """Return what tells this cubin from every other: architecture, sources, options, compiler and CUDA's headers."""
    made_of = {
        "arch": arch,
        "source": variants.source(program.source),
        "headers": variants.headers(),
        "cuda": cuda_headers,
        "expressions": program.expressions,
        "options": OPTIONS,
        "nvrtc": version,
    }
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def compile_program(program: Program, arch: str) -> Cubin:
    """Compile a program for an architecture such as "sm_90"; it takes from one to several seconds.

    Raises:
        CompilerMissing: NVRTC or a header is not there.
        CannotCompile: the compiler refused, with its log.
    """
    try:
        binding, folders = nvrtc(), include_folders()
    except ImportError as error:
        raise CompilerMissing(program=program.name, arch=arch, missing=str(error)) from error
    headers = variants.headers()
    handle = binding.createProgram(
        variants.source(program.source),
        f"{program.source}.cu",
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    options = (f"-arch={arch}", *OPTIONS, REPORT, *(f"-I{folder}" for folder in folders))
    try:
        for expression in program.expressions:
            binding.addNameExpression(handle, expression)
        binding.compileProgram(handle, options)
        names = {expression: binding.getLoweredName(handle, expression) for expression in program.expressions}
        return Cubin(binding.getCUBIN(handle), names, binding.getProgramLog(handle))
    except binding.NVRTCError as error:
        compiler = "NVRTC {}.{}".format(*nvrtc_version())
        log = binding.getProgramLog(handle) or str(error)
        raise CannotCompile(program=program.name, arch=arch, compiler=compiler, log=log) from error
    finally:
        binding.destroyProgram(handle)
