"""Compiles the kernels into one extension module that serves every Python from 3.10 on and every torch.

Each instruction set is a file of its own with its own flags, and all files are compiled at once. Needed are a C++17
compiler and Python's headers; which of the sets is used is chosen at run time.
"""

# ruff: noqa: INP001 - a script of the build, no part of the package

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULE = Path("src", "vllm_ir_provider_cpu_c", "_native.abi3.so")

# Contraction would round a * b + c once where native rounds twice; nothing else is given up for speed.
FLAGS = [
    "-std=c++17",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]
AVX2 = ["-O3", "-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
PLAIN: dict[str, list[str]] = {"module.cpp": [], "dispatch.cpp": [], "kernels_scalar.cpp": []}
SOURCES: dict[str, dict[str, list[str]]] = {
    "x86_64": {**PLAIN, "kernels_avx2.cpp": AVX2, "kernels_avx512.cpp": AVX512},
    "aarch64": {**PLAIN, "kernels_neon.cpp": ["-O3"]},
}


class CannotBuildError(Exception):
    """The kernels cannot be built here; the message is the one sentence that says why."""


def find_compiler() -> list[str]:
    """Return the command of a C++ compiler: `$CXX`, else the first of the usual names.

    Raises:
        CannotBuildError: there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for command in [named] if named else [["g++"], ["clang++"], ["c++"]]:
        if shutil.which(command[0]) is not None:
            return command
    looked = f"'{named[0]}' ($CXX) was" if named else "'g++', 'clang++' and 'c++' were"
    msg = (
        f"vllm-ir-provider-cpu-c needs a C++17 compiler to build its kernels, and {looked} not found:"
        " install one (on Debian: apt-get install g++), or name it in CXX."
    )
    raise CannotBuildError(msg)


def find_headers() -> Path:
    """Return the folder of Python.h.

    Raises:
        CannotBuildError: this Python came without it.
    """
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        msg = (
            f"vllm-ir-provider-cpu-c needs the headers of Python to build its kernels, and {folder} has no Python.h:"
            " install them (on Debian: apt-get install python3-dev)."
        )
        raise CannotBuildError(msg)
    return folder


def run(command: list[str]) -> None:
    """Run a compiler.

    Raises:
        CannotBuildError: it failed; the message holds what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's compiler
    if done.returncode:
        msg = f"{shlex.join(command)} failed with exit code {done.returncode}:\n{done.stderr}"
        raise CannotBuildError(msg)


def build(root: Path, target: Path) -> None:
    """Compile `csrc` below `root` into the module `target`.

    Raises:
        CannotBuildError: something needed is missing, or the compiler failed.
    """
    if sys.platform != "linux":
        msg = f"vllm-ir-provider-cpu-c is built for Linux; there are no kernels for {sys.platform}."
        raise CannotBuildError(msg)
    compiler, headers = find_compiler(), find_headers()
    extra = shlex.split(os.environ.get("CXXFLAGS", ""))
    sources = SOURCES.get(platform.machine(), PLAIN)
    with tempfile.TemporaryDirectory() as scratch:
        commands, objects = [], []
        for name, flags in sources.items():
            made = str(Path(scratch, name).with_suffix(".o"))
            folders = ["-I", str(root / "csrc"), "-I", str(headers)]
            source = str(root / "csrc" / name)
            commands.append([*compiler, *FLAGS, *flags, *extra, *folders, "-c", source, "-o", made])
            objects.append(made)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, commands))
        # A new file, moved into place: a process that has the old one mapped keeps it.
        fresh = target.with_suffix(".new")
        run([*compiler, "-shared", "-pthread", *extra, *objects, "-o", str(fresh), "-ldl"])
        fresh.replace(target)


class CompiledKernels(BuildHookInterface[Any]):
    """Builds the module into the package, for wheels and for editable installs alike."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatch what the wheel holds and which machines it is for."""
        del version
        try:
            build(Path(self.root), Path(self.root) / MODULE)
        except CannotBuildError as error:
            self.app.abort(str(error))
        build_data["artifacts"].append(MODULE.as_posix())
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
