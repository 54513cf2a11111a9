"""How a report looks: rows for a terminal, Markdown for a README. Nothing is printed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vllm_ir_testkit.outcome import FAILED, KNOWN, PASSED, SKIPPED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vllm_ir_testkit.outcome import Outcome, Report

MARKS: Final = {PASSED: "✓", FAILED: "✗", KNOWN: "known", SKIPPED: "-"}
"""How a state looks in a table."""

HEADINGS: Final = ("op", "passed", "failed", "known", "skipped", "differs from native")
"""Headings of the table for a terminal."""

SHOWN: Final = 3
"""Findings of one outcome that a person is shown."""


def rows(report: Report) -> list[tuple[str, ...]]:
    """Return one row per op, and one per refused op."""
    found = []
    for op in ops(report):
        mine = [each for each in report.outcomes if each.op == op]
        counts = (str(sum(each.state == state for each in mine)) for state in (PASSED, FAILED, KNOWN, SKIPPED))
        found.append((op, *counts, distance(mine)))
    return found


def ops(report: Report) -> list[str]:
    """Return the ops of a report in order."""
    return list(dict.fromkeys(each.op for each in report.outcomes))


def distance(outcomes: Iterable[Outcome]) -> str:
    """Return how far an op's results are from native's, by dtype, in words."""
    values = next((each for each in outcomes if each.check == "values"), None)
    if values is None:
        return ""
    if values.figures and not any(figures["differing"] for figures in values.figures.values()):
        return "no bit"
    parts = []
    for dtype, figures in values.figures.items():
        if not figures["differing"]:
            parts.append(f"{dtype} no bit")
            continue
        share = f"1 in {1 / figures['share']:,.0f}"
        units = figures["worst_units"]
        parts.append(f"{dtype} {share} by {'<= ' if units > 1 else ''}{units} unit{'s' if units > 1 else ''}")
    return ", ".join(parts)


def findings(outcome: Outcome, most: int = SHOWN) -> list[str]:
    """Return the findings of an outcome in lines, those that are known with their reason."""
    lines = [
        f"{each.case}: {each.what}" + (f" [known: {each.known}]" if each.known else "")
        for each in outcome.findings[:most]
    ]
    left = len(outcome.findings) + outcome.more - len(lines)
    return [*lines, *([f"and {left} more"] if left > 0 else [])]


def skipped(report: Report) -> list[str]:
    """Return one line per reason for which something was skipped."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for each in report.outcomes:
        if each.state == SKIPPED:
            reasons.setdefault(each.reason or "", {}).setdefault(each.check, []).append(each.op)
    every = len(ops(report))
    lines = []
    for reason, by_check in reasons.items():
        parts = [
            check if len(names) == every else f"{check} of {', '.join(names)}" for check, names in by_check.items()
        ]
        lines.append(f"{'; '.join(parts) if any(' of ' in part for part in parts) else ', '.join(parts)}: {reason}")
    return lines


def sentence(report: Report) -> str:
    """Return what a report comes to in one sentence."""
    who = f"{report.provider}" + (f" ({report.distribution} {report.version})" if report.distribution else "")
    where = f"{report.platform}, torch {report.torch}"
    if not report.outcomes:
        return f"{who}: nothing to check on {where}"
    counts = [f"{report.count(PASSED)} passed"]
    counts += [f"{report.count(state)} {word}" for state, word in _WORDS if report.count(state)]
    return f"{who}: {', '.join(counts)} on {where}, in {report.seconds:.0f} s"


_WORDS: Final = ((FAILED, "failed"), (KNOWN, "known to fail"), (SKIPPED, "skipped"))


def markdown(report: Report) -> str:
    """Return a report as Markdown: a table of checks by ops, one of distances, and what is skipped or known."""
    names = ops(report)
    checks = list(dict.fromkeys(each.check for each in report.outcomes))
    states = {(each.op, each.check): each for each in report.outcomes}
    lines = [f"**{sentence(report)}**", ""]
    if names:
        lines += _table(
            ["check", *names],
            [[check, *(_mark(states.get((op, check))) for op in names)] for check in checks],
        )
        lines += ["", *_table(["op", "differs from native"], [[row[0], row[-1]] for row in rows(report)])]
    lines += ["", *(f"- skipped: {line}" for line in skipped(report))]
    lines += [f"- {op} is refused here: {reason}" for op, reason in report.refused.items()]
    for each in report.outcomes:
        if each.findings:
            lines += [f"- {each.op}, {each.check}: {line}" for line in findings(each)]
    return "\n".join(lines).strip() + "\n"


def _mark(outcome: Outcome | None) -> str:
    """Return the mark of an outcome."""
    return "" if outcome is None else MARKS[outcome.state]


def _table(headings: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in body)]
