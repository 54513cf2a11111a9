"""`build` compiles every kernel for architectures named on the command line, for machines without NVRTC.

Without `--out` the cubins lie in the package itself, where they are used and where a wheel built afterwards takes them
along. Another folder is only for carrying: its files are used once they are copied into the package. No GPU, no driver
and no torch are needed.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir_provider_vllm_c import compiling, cubins
from vllm_ir_provider_vllm_c.errors import CannotWrite, KernelError
from vllm_ir_provider_vllm_c.variants import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

COPY: Final = "copy the files into the folder vllm_ir_provider_vllm_c/built of the installation that shall use them"
OUT: Final = f"the folder; without, the package's own, where cubins are used. From another, {COPY}"


def main(words: Sequence[str]) -> int:
    """Run a command line and return its exit code: 0 built, 1 not compiled or not written, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m vllm_ir_provider_vllm_c", description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build", help="compile every kernel ahead of time")
    build.add_argument("--arch", required=True, type=architectures, help="such as sm_80,sm_90")
    build.add_argument("--out", type=Path, default=cubins.BUILT, help=OUT)
    given = parser.parse_args(words)
    try:
        build_all(given.arch, given.out)
    except KernelError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if given.out != cubins.BUILT:
        sys.stderr.write(f"Nothing is read from {given.out}: {COPY}.\n")
    return 0


def architectures(text: str) -> tuple[str, ...]:
    """Return the architectures of a comma-separated list.

    Raises:
        argparse.ArgumentTypeError: one of them is none of CUDA's.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    wrong = [name for name in names if not re.fullmatch(r"sm_[0-9]{2,3}", name)]
    if wrong or not names:
        msg = (
            f"{', '.join(map(repr, wrong)) or 'an empty list'} is no list of architectures; wanted such as sm_80,sm_90"
        )
        raise argparse.ArgumentTypeError(msg)
    return names


def build_all(archs: Sequence[str], out: Path) -> None:
    """Compile every program for every architecture into a folder.

    Raises:
        KernelError: a program cannot be compiled, or a cubin not be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(path=str(out), cause=error.strerror or repr(error)) from error
    for arch in archs:
        for program in PROGRAMS:
            file = cubins.built_file(program, arch, out)
            cubin = compiling.compile_program(program, arch)
            try:
                cubins.store(file, cubin, cubins.FOR_ALL)
            except OSError as error:
                raise CannotWrite(path=str(file), cause=error.strerror or repr(error)) from error
            sys.stdout.write(f"{file}\n")
