"""Builds the kernels and their driver with sanitizers and runs them: a script, for nox and for hand.

python tests/sanitizers/run.py                    # AddressSanitizer with UndefinedBehaviorSanitizer, ThreadSanitizer
python tests/sanitizers/run.py plain              # none: instruction sets against the scalar path alone
python tests/sanitizers/run.py aarch64            # the same for Arm, cross-compiled, under qemu's user mode
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import hatch_build  # type: ignore[import-not-found]  # noqa: E402 - the build's own flags, found by the line above

KINDS = {
    "address,undefined": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
    "plain": [],
    "aarch64": [],
}
# The driver of a sanitized build is slow; what is wrong shows without the optimiser, and lines can be named.
FLAGS = [flag for flag in hatch_build.FLAGS if flag not in ("-O2", "-DNDEBUG")]


def build(kind: str, folder: Path) -> list[str]:
    """Compile kernels and driver, and return the command that runs them."""
    arm = kind == "aarch64"
    compiler = ["aarch64-linux-gnu-g++"] if arm else hatch_build.find_compiler()
    machine = "aarch64" if arm else os.uname().machine
    sources = {
        ROOT / "csrc" / name: flags for name, flags in hatch_build.SOURCES[machine].items() if name != "module.cpp"
    }
    sources[Path(__file__).with_name("driver.cpp")] = []
    level = ["-O2"] if kind in ("plain", "aarch64") else ["-O1", "-g"]
    commands, objects = [], []
    for source, flags in sources.items():
        own = [flag for flag in flags if flag != "-O3"]
        made = str(folder / f"{source.stem}.o")
        command = [
            *compiler,
            *FLAGS,
            *level,
            *KINDS[kind],
            *own,
            "-I",
            str(ROOT / "csrc"),
            "-c",
            str(source),
            "-o",
            made,
        ]
        commands.append(command)
        objects.append(made)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(hatch_build.run, commands))
    program = str(folder / "driver")
    hatch_build.run([*compiler, *KINDS[kind], "-pthread", *(["-static"] if arm else []), *objects, "-o", program])
    return ["qemu-aarch64", program] if arm else [program]


def main(kinds: list[str]) -> int:
    """Build and run each kind, and return 1 if one finds anything."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; there are {', '.join(KINDS)}\n")
        return 2
    if "aarch64" in kinds and not (shutil.which("aarch64-linux-gnu-g++") and shutil.which("qemu-aarch64")):
        sys.stderr.write(
            "aarch64 needs aarch64-linux-gnu-g++ and qemu-aarch64 (on Debian: g++-aarch64-linux-gnu qemu-user)\n"
        )
        return 2
    code = 0
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                command = build(kind, Path(folder))
            except hatch_build.CannotBuildError as error:
                sys.stderr.write(f"{kind}: {error}\n")
                code = 1
                continue
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            sys.stdout.write(f"{kind}: exit code {done.returncode}, {done.stdout.strip()}\n{done.stderr[-4000:]}")
            code = code or int(done.returncode != 0)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["address,undefined", "thread"]))
