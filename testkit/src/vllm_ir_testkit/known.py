"""Known failures: faults that a provider's author has written down with a reason, held strictly.

A finding that an entry covers fails nobody; an entry that covers no finding any more does.
"""

from __future__ import annotations

import fnmatch
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from vllm_ir.errors import did_you_mean, listed

from vllm_ir_testkit.checks import NAMES
from vllm_ir_testkit.errors import BadKnownFailures
from vllm_ir_testkit.outcome import Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE: Final = "known_failures.toml"
"""The name of the file in a provider's package."""

SCHEMA: Final = 1
"""Version of its format."""

_KEYS: Final = ("op", "check", "reason", "case", "platform")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One entry.

    Attributes:
        op: the op's name, or a pattern such as "*".
        check: the check's name.
        reason: why it fails, and where that is being mended.
        case: a pattern that the case in words matches; "*" for every case.
        platform: the platform's name, or "*".
        file: where it is written down.
    """

    op: str
    check: str
    reason: str
    case: str = "*"
    platform: str = "*"
    file: str = ""

    def concerns(self, op: str, check: str, platform: str) -> bool:
        """Tell whether it is about an op and a check on a platform."""
        return check == self.check and fnmatch.fnmatch(op, self.op) and fnmatch.fnmatch(platform, self.platform)

    def covers(self, finding: Finding) -> bool:
        """Tell whether it is about a case."""
        return fnmatch.fnmatchcase(finding.case, self.case)


def read(file: Path) -> tuple[KnownFailure, ...]:
    """Return the entries of a file.

    Raises:
        BadKnownFailures: it cannot be read, or an entry means nothing.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadKnownFailures(
            file=str(file), problem=f"it cannot be read: {error}", fix="Give a TOML file with [[failure]] tables."
        ) from None
    unknown = sorted(set(content) - {"schema", "failure"})
    if content.get("schema") != SCHEMA or unknown:
        raise BadKnownFailures(
            file=str(file),
            problem=f"unknown keys {listed(unknown)}" if unknown else f"schema is {content.get('schema')!r}",
            fix=f"Write schema = {SCHEMA}, then [[failure]] tables.",
        )
    entries = content.get("failure", [])
    if not isinstance(entries, list):
        raise BadKnownFailures(file=str(file), problem="failure is no list of tables", fix="Write [[failure]].")
    return tuple(_entry(str(file), number, entry) for number, entry in enumerate(entries, 1))


def _entry(file: str, number: int, entry: dict[str, Any]) -> KnownFailure:
    """Return one entry, checked."""
    for key, value in entry.items():
        if key not in _KEYS or not isinstance(value, str) or not value.strip():
            raise BadKnownFailures(
                file=file,
                problem=f"entry {number} has {key} = {value!r}",
                fix=f"Its keys are {', '.join(_KEYS)}, each a text.{did_you_mean(key, _KEYS)}",
            )
    missing = [key for key in _KEYS[:3] if key not in entry]
    if missing:
        raise BadKnownFailures(
            file=file,
            problem=f"entry {number} has no {', '.join(missing)}",
            fix="A failure without a reason is not known, it is hidden.",
        )
    if entry["check"] not in NAMES:
        raise BadKnownFailures(
            file=file,
            problem=f"entry {number} names the check {entry['check']!r}",
            fix=f"Checks are {', '.join(NAMES)}.{did_you_mean(entry['check'], NAMES)}",
        )
    return KnownFailure(**entry, file=file)


def judge(
    findings: Sequence[Finding], known: Sequence[KnownFailure], op: str, check: str, platform: str
) -> tuple[Finding, ...]:
    """Return the findings with what is known of each, and one more for each entry that covers none.

    Args:
        findings: what a check found that judged at least one case.
        known: all entries.
        op: the op that was judged.
        check: the check that judged it.
        platform: where.
    """
    entries = [entry for entry in known if entry.concerns(op, check, platform)]
    marked = []
    for finding in findings:
        entry = next((each for each in entries if each.covers(finding)), None)
        marked.append(finding if entry is None else replace(finding, known=entry.reason))
    passed = [entry for entry in entries if not any(entry.covers(finding) for finding in findings)]
    return (
        *marked,
        *(
            Finding(
                entry.case,
                f"known to fail ({entry.reason}), and passes now; take the entry out of {entry.file or FILE}",
            )
            for entry in passed
        ),
    )
