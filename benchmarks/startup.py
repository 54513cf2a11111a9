"""What start-up costs: verbs that read files among 300 distributions, and `import vllm_ir` on top of `import torch`.

Run as a script: `python benchmarks/startup.py [--distributions 300] [--runs 15]`. Figures are wall-clock
milliseconds of whole processes, minimum and median; what the interpreter alone takes is shown beside them. Modules are
compiled, as they are where an installer put them, even if PYTHONDONTWRITEBYTECODE is set here.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROVIDERS = 4
SIZE = 10 << 20
"""Bytes of all providers together; random, so that nothing can guess them."""
LIMIT_LIST = 250.0
LIMIT_LOCK = 300.0
LIMIT_IMPORT = 0.05

MANIFEST = """
schema = 1
provider-api = "1"
summary = "Synthetic provider {number}."
[providers.synthetic_{number}]
dtypes = ["float32"]
[providers.synthetic_{number}.platforms]
{platform} = {{}}
[providers.synthetic_{number}.ops]
rms_norm = {{}}
silu_and_mul = {{}}
"""


def make_distribution(folder: Path, number: int) -> None:
    """Write what an installer leaves of a distribution; the first few bring a provider, the others a script."""
    metadata = folder / f"synthetic_{number}-1.{number}.dist-info"
    metadata.mkdir()
    text = f"Metadata-Version: 2.1\nName: synthetic-{number}\nVersion: 1.{number}\n" + "Classifier: x\n" * 30
    (metadata / "METADATA").write_text(text, encoding="utf-8")
    (metadata / "RECORD").write_text(f"synthetic_{number}/__init__.py,,\n" * 200, encoding="utf-8")
    entry_points = f"[console_scripts]\nsynthetic-{number} = synthetic_{number}:main\n"
    package = folder / f"synthetic_{number}"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('listing imported a provider')\n", encoding="utf-8")
    if number < PROVIDERS:
        entry_points += f"\n[vllm_ir.providers]\nsynthetic_{number} = synthetic_{number}.hooks\n"
        manifest = MANIFEST.format(number=number, platform="cuda" if number % 2 else "cpu")
        (package / "vllm_ir_provider.toml").write_text(manifest, encoding="utf-8")
        (package / "kernels.so").write_bytes(os.urandom(SIZE // PROVIDERS))
    (metadata / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    if number < PROVIDERS:
        rows = [hashed_row(path, folder) for path in sorted(package.iterdir())]
        (metadata / "RECORD").write_text("".join(rows), encoding="utf-8")


def hashed_row(path: Path, folder: Path) -> str:
    """Return the line of RECORD for a file."""
    content = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path.relative_to(folder).as_posix()},sha256={digest},{len(content)}\n"


def compiled(cache: str, path: str = "") -> dict[str, str]:
    """Return this environment with a cache for compiled modules, and a folder on Python's path."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": cache, **({"PYTHONPATH": path} if path else {})}


def measure(code: list[str], runs: int, environment: dict[str, str], cwd: str | None = None) -> tuple[float, float]:
    """Return minimum and median of the milliseconds that a Python process takes, after one run that fills caches."""
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        done = subprocess.run(  # noqa: S603 - starts the interpreter that runs this script
            [sys.executable, *code], env=environment, capture_output=True, text=True, check=False, cwd=cwd
        )
        times.append((time.perf_counter() - begin) * 1000)
        if done.returncode:
            sys.exit(f"{code} failed: {done.stderr}")
    return min(times[1:]), statistics.median(times[1:])


def inside(before: str, statement: str, runs: int, environment: dict[str, str]) -> tuple[float, float]:
    """Return minimum and median of the milliseconds that one statement takes in a fresh interpreter."""
    code = f"{before}\nimport time; t = time.perf_counter()\n{statement}\nprint((time.perf_counter() - t) * 1000)"
    times = []
    for _ in range(runs + 1):
        done = subprocess.run(  # noqa: S603 - starts the interpreter that runs this script
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        times.append(float(done.stdout))
    return min(times[1:]), statistics.median(times[1:])


def main() -> None:
    """Print the figures and what they are held against."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--distributions", type=int, default=300)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    listed = f"vllm-ir list, {options.distributions} more distributions"
    every = "import vllm_ir\nfor name in vllm_ir.__all__: getattr(vllm_ir, name)"
    lock, check = (f"vllm-ir {verb}, {SIZE >> 20} MiB of provider files" for verb in ("lock", "check"))
    few = max(3, options.runs // 3)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        for number in range(options.distributions):
            make_distribution(Path(folder), number)
        plain, crowded = compiled(cache), compiled(cache, folder)
        rows = {
            "python -c pass": measure(["-c", "pass"], options.runs, plain),
            listed: measure(["-m", "vllm_ir", "list"], options.runs, crowded),
            "vllm-ir list --json, the same": measure(["-m", "vllm_ir", "list", "--json"], options.runs, crowded),
            # What is installed beside them may be editable, and has no digest then.
            lock: measure(["-m", "vllm_ir", "lock", "--allow-editable"], options.runs, crowded, cache),
            check: measure(["-m", "vllm_ir", "check"], options.runs, crowded, cache),
            "vllm-ir check --fast": measure(["-m", "vllm_ir", "check", "--fast"], options.runs, crowded, cache),
            "import torch": inside("", "import torch", few, plain),
            "import vllm_ir after it": inside("import torch", "import vllm_ir", few, plain),
            "  and touch every public name": inside("import torch", every, few, plain),
        }
    listing, (*_, torch, door, names) = rows[listed], rows.values()
    print(f"{'milliseconds':<52}{'minimum':>9}{'median':>9}")
    for name, (low, middle) in rows.items():
        print(f"{name:<52}{low:>9.1f}{middle:>9.1f}")
    print(f"\nvllm-ir list: median {listing[1]:.0f} ms, wanted at most {LIMIT_LIST:.0f} ms")
    slowest = max(rows[lock][1], rows[check][1])
    print(f"vllm-ir lock and check: median at most {slowest:.0f} ms, wanted at most {LIMIT_LOCK:.0f} ms")
    share, whole = door[1] / torch[1], names[1] / torch[1]
    print(
        f"import vllm_ir: {share:.2%} of import torch, wanted at most {LIMIT_IMPORT:.0%};"
        f" {whole:.2%} when every public name is used"
    )


if __name__ == "__main__":
    main()
