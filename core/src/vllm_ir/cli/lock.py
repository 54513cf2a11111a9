"""`vllm-ir lock`: write down which kernels run here, or on platforms that are named, for `check` and VLLM_IR_LOCK.

Static: files are read and hashed, nothing is imported.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ir.cli import output
from vllm_ir.cli.locking import inspect, read_name
from vllm_ir.errors import ConfigurationError, Unlockable
from vllm_ir.lock.anew import can_be_named, write_command
from vllm_ir.lock.document import FILE, MODES
from vllm_ir.lock.files import Depth
from vllm_ir.lock.lock_file import read_lock, write_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir.lock.document import Lock
    from vllm_ir.lock.taking import Taken


def run(arguments: list[str]) -> int:
    """Run `vllm-ir lock` and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir lock",
        description="Write the lock: the installed distributions with their digests, and who runs each op.",
    )
    parser.add_argument(
        "--lock", metavar="FILE", type=read_name, default=FILE, help=f"where to write it; default: {FILE}"
    )
    parser.add_argument(
        "--platform",
        metavar="NAME",
        action="append",
        help="for this platform, which need not be here, instead of this machine: cpu, cuda:9.0, rocm:gfx942, xpu;"
        " several times for several",
    )
    parser.add_argument(
        "--allow-editable",
        action="store_true",
        help="lock distributions without a digest, too; VLLM_IR_LOCK never accepts such a lock",
    )
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    options = parser.parse_args(arguments)
    taken = inspect(options.platform, Depth.BYTES)
    _refuse(taken, allow_editable=options.allow_editable)
    faults = [fault for seen in taken.inspected.values() for fault in seen.faults]
    if faults:
        for fault in faults:
            print(fault, file=sys.stderr if options.json else sys.stdout)
        output.complain(f"{options.lock} was not written: what is installed is not what its wheels brought.")
        return 1
    file = Path(options.lock).expanduser()
    dropped = _dropped(file, taken.lock)
    changed = write_lock(taken.lock, file)
    if dropped:
        output.complain(_say_dropped(options.lock, dropped, taken.lock))
    if options.json:
        _print_json(options.lock, taken, dropped, changed=changed)
        return 0
    for note in taken.notes:
        output.complain(note)
    print(f"{options.lock}: {_summary(taken.lock)}{'' if changed else ', unchanged'}.")
    return 0


def _refuse(taken: Taken, *, allow_editable: bool) -> None:
    """Refuse what no lock can hold.

    Raises:
        ConfigurationError: a run would stop with it.
        Unlockable: a distribution has no digest.
    """
    if taken.problems:
        raise taken.problems[0]
    without = [(name, seen.reason) for name, seen in sorted(taken.inspected.items()) if seen.digest is None]
    if without and not allow_editable:
        raise Unlockable(distributions=without, fixes=_fixes(taken, [name for name, _ in without]))


def _fixes(taken: Taken, names: Sequence[str]) -> list[str]:
    """Return the sentences that install the wheels of distributions, those with the same beginning as one."""
    wheels: dict[str, list[str]] = {}
    for name in names:
        wheels.setdefault(taken.inspected[name].install, []).append(f"{name}=={taken.lock.distributions[name].version}")
    return [f"{install} {' '.join(each)}" for install, each in wheels.items()]


def _dropped(file: Path, lock: Lock) -> list[str]:
    """Return the sections that a file has and the lock that replaces it has not; of a file that is no lock, none."""
    try:
        before = read_lock(file)
    except ConfigurationError:
        return []
    return sorted({*before.platforms} - {*lock.platforms})


def _say_dropped(file: str, dropped: Sequence[str], lock: Lock) -> str:
    """Return the sentence about sections that were dropped."""
    editable = any(each.digest is None for each in lock.distributions.values())
    command = write_command(file, [*dropped, *lock.platforms], None, editable=editable)
    machines = [key for key in (*dropped, *lock.platforms) if not can_be_named(key)]
    alone = f" Only such a machine writes one for {' and '.join(machines)}, into a file of its own." if machines else ""
    what = "the section" if len(dropped) == 1 else "sections"
    lost = f"{file} has lost {what} for {', '.join(dropped)}, which this command did not name"
    return f"{lost}. To have all of them: {command}.{alone}"


def _summary(lock: Lock) -> str:
    """Return how much is locked."""
    distributions, orders = len(lock.distributions), count_orders(lock)
    platforms = ", ".join(lock.platforms)
    return (
        f"{distributions} {'distribution' if distributions == 1 else 'distributions'},"
        f" {orders} {'order' if orders == 1 else 'orders'} on {platforms}"
    )


def count_orders(lock: Lock) -> int:
    """Return how many orders a lock has, over all platforms and modes."""
    return sum(len(each.orders(compiling=mode)) for each in lock.platforms.values() for mode in MODES)


def _print_json(file: str, taken: Taken, dropped: Sequence[str], *, changed: bool) -> None:
    """Print what was locked."""
    lock = taken.lock
    output.emit_json(
        {
            "file": file,
            "changed": changed,
            "dropped": list(dropped),
            "core": lock.core,
            "provider_api": list(lock.provider_api),
            "recorded": dict(lock.recorded),
            "distributions": {
                name: {
                    "version": each.version,
                    "manifest": each.manifest,
                    "digest": each.digest,
                    "providers": list(each.providers),
                }
                for name, each in sorted(lock.distributions.items())
            },
            "platforms": {
                key: {
                    "architectures": list(each.architectures),
                    "recorded": dict(each.recorded),
                    **{
                        mode: {
                            op: [{"provider": place.provider, "layer": place.layer} for place in places]
                            for op, places in each.orders(compiling=compiling).items()
                        }
                        for compiling, mode in MODES.items()
                    },
                }
                for key, each in sorted(lock.platforms.items())
            },
            "notes": list(taken.notes),
        }
    )
