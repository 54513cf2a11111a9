"""`vllm-ir export requirements`: what a lock pins, in the words of installers.

Static: nothing is imported.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vllm_ir.cli import output
from vllm_ir.cli.facts import survey_here
from vllm_ir.cli.locking import asked_file, is_absent, read_name
from vllm_ir.lock.document import FILE
from vllm_ir.lock.lock_file import read_lock
from vllm_ir.names import normalise


def run(arguments: list[str]) -> int:
    """Run `vllm-ir export` and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir export",
        description="Print pinned name==version lines for pip, uv and their lock files.",
    )
    parser.add_argument("what", choices=["requirements"], help="what is printed")
    parser.add_argument(
        "--lock",
        metavar="FILE",
        type=read_name,
        help=f"the lock; default: that of VLLM_IR_LOCK, else {FILE}, else what is installed",
    )
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    options = parser.parse_args(arguments)
    source, versions = _versions(options.lock)
    if options.json:
        output.emit_json({"source": source, "requirements": dict(sorted(versions.items()))})
        return 0
    output.complain(f"from {source or 'what is installed, since there is no lock here'}.")
    for name, version in sorted(versions.items()):
        print(f"{name}=={version}")
    return 0


def _versions(named: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the lock that says it, None where what is installed does, and the version of each distribution."""
    if is_absent(named):
        usable = [record for record in survey_here(locked=False).distributions if record.failure is None]
        return None, {normalise(record.name): record.version for record in usable}
    file = asked_file(named)
    locked = read_lock(Path(file).expanduser())
    return file, {name: each.version for name, each in locked.distributions.items()}
