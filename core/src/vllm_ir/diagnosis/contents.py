"""Whether what is installed is what its installer left: files against RECORD, and where Python imports them from.

How that is seen is left to `lock`, which holds a machine against it; here no lock is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir.errors import ConfigurationError
from vllm_ir.lock.comparing import compare
from vllm_ir.lock.files import Depth
from vllm_ir.lock.installed import Inspector
from vllm_ir.lock.lock_file import read_lock
from vllm_ir.lock.taking import take
from vllm_ir.names import normalise

if TYPE_CHECKING:
    from pathlib import Path

    from vllm_ir.plugins.records import DistributionRecord
    from vllm_ir.plugins.static import Survey
    from vllm_ir.preferences import Preferences

READ: Final = 4 << 20
"""Bytes that are read in all; of what goes beyond, sizes and times are looked at."""

_SHOWN: Final = 5


def find_damage(found: Survey) -> dict[str, tuple[str, ...]]:
    """Return what is not as it was installed, by normalised name of a distribution, in sentences.

    What the operator or this machine leaves out runs in no process and is not looked at.
    """
    inspector, left = Inspector(), READ
    damage: dict[str, tuple[str, ...]] = {}
    for record in found.distributions:
        if record.failure is not None and not record.failure.fault:
            continue
        size = inspector.size(record)
        inspector.depth = Depth.BYTES if size <= left else Depth.GLANCE
        left -= size if size <= left else 0
        sentences = _sentences(record, inspector)
        if sentences:
            damage[normalise(record.name)] = sentences
    return damage


def _sentences(record: DistributionRecord, inspector: Inspector) -> tuple[str, ...]:
    """Return what is not as installed of one distribution; an editable one, or one without a RECORD, is what it is."""
    seen = inspector.inspect(record)
    told = [
        f"{each.what}: not as installed: wanted {each.locked}, found {each.found}. {each.mend}" for each in seen.faults
    ]
    if "cannot be read" in seen.reason:
        told.append(f"distribution {record.name}: {seen.reason}, so nobody can tell whether its files are its own.")
    if len(told) > _SHOWN:
        told[_SHOWN:] = [f"distribution {record.name}: {len(told) - _SHOWN} more like these."]
    return tuple(told)


def hold_against(file: Path, found: Survey, preferences: Preferences) -> str | None:
    """Return in what this machine differs from a lock that nobody enforces, in words, or None.

    Args:
        file: the lock.
        found: what is installed.
        preferences: what users asked for.
    """
    try:
        differences = [each for each in compare(read_lock(file), take([found], preferences)) if each.pinned]
    except ConfigurationError as error:
        return f"Not in force, and it could not be: {error}"
    if not differences:
        return None
    more = f" (and {len(differences) - 1} more: vllm-ir check --fast)" if len(differences) > 1 else ""
    return f"Not in force, and this machine is not what it says. {differences[0]}{more}"
