"""Look into built wheels for what must ship; a script, because it judges wheels and not the working tree."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def missing(wheel: Path) -> list[str]:
    """Return what a wheel should carry and does not."""
    names = zipfile.ZipFile(wheel).namelist()
    package = wheel.name.split("-")[0]
    metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
    entry_points = metadata.replace("METADATA", "entry_points.txt")
    text = zipfile.ZipFile(wheel).read(entry_points).decode() if entry_points in names else ""
    wanted = [f"{package}/py.typed", f"{package}/__init__.py"]
    if "[vllm_ir.providers]" in text:
        wanted.append(f"{package}/vllm_ir_provider.toml")
    if package == "vllm_ir":
        wanted.append("vllm_ir/plugins/provider.schema.json")
    return [name for name in wanted if name not in names] + [
        f"(not wanted) {name}"
        for name in names
        if ("tests/" in name and "/templates/" not in name) or name.endswith(".pyc")
    ]


def main(wheels: list[str]) -> int:
    """Print each wheel with what it lacks, and return 1 if any lacks something."""
    faults = {wheel: missing(Path(wheel)) for wheel in wheels}
    for wheel, names in faults.items():
        sys.stdout.write(f"{Path(wheel).name}: {', '.join(names) or 'complete'}\n")
    return 1 if any(faults.values()) or not faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
