"""`vllm-ir check`: hold this machine against a lock, and say of every difference how it is mended.

Static: files are read and hashed, nothing is imported.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_ir.cli import output
from vllm_ir.cli.locking import asked_file, inspect, is_absent, read_name
from vllm_ir.errors import Difference
from vllm_ir.lock.comparing import compare
from vllm_ir.lock.document import FILE
from vllm_ir.lock.files import Depth
from vllm_ir.lock.lock_file import read_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING: Final = 3
"""Exit code where there is no lock to hold a machine against."""


def run(arguments: list[str]) -> int:
    """Run `vllm-ir check` and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir check",
        description="Hold this machine against a lock; each difference is a line: what, locked, found, how to mend.",
    )
    parser.add_argument(
        "--lock", metavar="FILE", type=read_name, help=f"the lock; default: that of VLLM_IR_LOCK, else {FILE}"
    )
    parser.add_argument(
        "--platform",
        metavar="NAME",
        action="append",
        help="hold the section of this platform against what is installed, instead of that of this machine",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="compare what RECORD says of files, and read only those changed since, as a process does at its start",
    )
    parser.add_argument("--strict", action="store_true", help="what is only recorded has to be the same, too")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    options = parser.parse_args(arguments)
    if is_absent(options.lock):
        output.complain(f"there is no {FILE} here to check; `vllm-ir lock` writes one, --lock FILE names another.")
        return NOTHING
    file = asked_file(options.lock)
    locked = read_lock(Path(file).expanduser())
    taken = inspect(options.platform, Depth.GLANCE if options.fast else Depth.BYTES)
    problems = _problems([str(each) for each in taken.problems])
    differences = [*problems, *compare(locked, taken, strict=options.strict, file=file)]
    failing = [each for each in differences if each.pinned or options.strict]
    if options.json:
        _print_json(file, list(taken.lock.platforms), differences, failing)
    else:
        _print_lines(file, list(taken.lock.platforms), differences, failing)
    return 1 if failing else 0


def _problems(sentences: Sequence[str]) -> list[Difference]:
    """Return what a run would stop with, as differences from a machine that was locked, where one runs."""
    mend = "Mend that first."
    return [Difference("a run", "one that starts", f"one that stops: {each.rstrip('.')}", mend) for each in sentences]


def _print_lines(
    file: str, platforms: Sequence[str], differences: Sequence[Difference], failing: Sequence[Difference]
) -> None:
    """Print a line for each difference, those that fail first, and how many there are."""
    for each in failing:
        print(each)
    notes = [each for each in differences if each not in failing]
    for each in notes:
        print(f"note: {each}")
    where = ", ".join(platforms)
    noted = f", {len(notes)} {'note' if len(notes) == 1 else 'notes'}" if notes else ""
    if failing:
        print(f"{file}: {len(failing)} {'difference' if len(failing) == 1 else 'differences'} on {where}{noted}.")
    else:
        print(f"{file}: everything is as locked on {where}{noted}.")


def _print_json(
    file: str, platforms: Sequence[str], differences: Sequence[Difference], failing: Sequence[Difference]
) -> None:
    """Print the differences as values."""
    output.emit_json(
        {
            "file": file,
            "platforms": list(platforms),
            "clean": not failing,
            "differences": [
                {
                    "what": each.what,
                    "locked": each.locked,
                    "found": each.found,
                    "mend": each.mend,
                    "pinned": each.pinned,
                    "fails": each in failing,
                }
                for each in differences
            ],
        }
    )
