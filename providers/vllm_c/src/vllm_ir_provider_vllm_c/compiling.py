"""From a program to a cubin for one architecture, by NVRTC through CuPy's low-level binding, without driver or GPU.

Cubins are asked for, never PTX, so that an NVRTC newer than the driver does no harm. Where cubins are kept is left to
`cubins`, who loads them to `loading`.
"""

from __future__ import annotations

import hashlib
import json
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

HEADER: Final = "cuda_bf16.h"


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
        ImportError: the headers are nowhere.
    """
    spec = find_spec("nvidia")
    wheels = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    major = nvrtc_version()[0]
    roots = [folder / f"cu{major}" / "include" for folder in wheels]
    roots += [folder / "cuda_runtime" / "include" for folder in wheels]
    roots += [Path(sysconfig.get_path("data")) / "include", Path("/usr/local/cuda/include")]
    for root in roots:
        if (root / HEADER).is_file():
            beside = [root / "cccl", root.parent.parent / "cuda_cccl" / "include"]
            return (root, *(each for each in beside if each.is_dir()))
    msg = f"CUDA's header {HEADER} is not found (the wheel nvidia-cuda-runtime has it)"
    raise ImportError(msg)


def key(program: Program, arch: str, version: tuple[int, int]) -> str:
    """Return what tells this cubin from every other: architecture, sources, options and compiler."""
    made_of = {
        "arch": arch,
        "source": variants.source(program.source),
        "headers": variants.headers(),
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
