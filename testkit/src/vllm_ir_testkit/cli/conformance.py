"""`vllm-ir conformance PROVIDER`: judge everything that a provider does against what the ops mean."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_ir.cli import output

from vllm_ir_testkit import checks
from vllm_ir_testkit.cli.progress import bar

if TYPE_CHECKING:
    from vllm_ir_testkit.outcome import Outcome, Report


def run(arguments: list[str]) -> int:
    """Judge a provider and say what was found.

    Args:
        arguments: the command line behind the verb.

    Returns:
        0 clean, 1 a finding, 3 nothing to check on this machine.

    Raises:
        ConfigurationError: a name or a file does not fit.
    """
    options = _parser().parse_args(arguments)
    if options.list:
        _list(as_json=options.json)
        return 0
    if options.provider is None:
        _parser().error("name a provider; `vllm-ir list` shows those that are installed")
    with bar(f"judging {options.provider}") as tell, tempfile.TemporaryDirectory() as folder:
        from hypothesis.configuration import set_hypothesis_home_dir

        from vllm_ir_testkit import known
        from vllm_ir_testkit.engine import conformance

        # Hypothesis keeps what it reads of local modules, by default in the working directory.
        set_hypothesis_home_dir(folder)
        entries = [entry for file in options.known for entry in known.read(Path(file))]
        report = conformance(options.provider, options.op, options.check, entries, tell)
    if options.json:
        output.emit_json(report.describe())
    elif options.markdown:
        from vllm_ir_testkit.rendering import markdown

        sys.stdout.write(markdown(report))
    else:
        show(report)
    return report.exit_code


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's options."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir conformance",
        description="Judge a provider: every op it implements, against what the op means.",
        epilog="Exit codes: 0 clean, 1 a finding, 2 usage or configuration, 3 nothing to check on this machine.",
    )
    parser.add_argument("provider", nargs="?", metavar="PROVIDER", help="its name in priority lists")
    parser.add_argument("--op", action="append", default=[], metavar="OP", help="only this op; may be repeated")
    parser.add_argument(
        "--check", action="append", default=[], metavar="CHECK", help="only this check; may be repeated"
    )
    parser.add_argument(
        "--known", action="append", default=[], metavar="FILE", help="known failures, beside those in its package"
    )
    parser.add_argument("--list", action="store_true", help="tell what each check demands, and stop")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    parser.add_argument("--markdown", action="store_true", help="print tables that a README can carry")
    return parser


def _list(*, as_json: bool) -> None:
    """Print every check with what it demands."""
    found = [checks.find(name) for name in checks.NAMES]
    if as_json:
        output.emit_json({"checks": [{"name": each.name, "demands": each.sentence} for each in found]})
        return
    output.print_table(
        ("check", "demands"), [((each.name, output.BOLD), (each.sentence, output.PLAIN)) for each in found]
    )


def show(report: Report) -> None:
    """Print a report for a person: what failed, a row per op, what was left out, and a sentence."""
    from vllm_ir_testkit import rendering

    for outcome in report.outcomes:
        if outcome.findings:
            _show_findings(outcome)
    if report.outcomes:
        styles = [output.BOLD, output.GOOD, output.BAD, output.DOUBTFUL, output.DIM, output.PLAIN]
        body = [
            [(cell, output.DIM if cell == "0" else style) for cell, style in zip(row, styles, strict=True)]
            for row in rendering.rows(report)
        ]
        output.print_table(rendering.HEADINGS, body)
        output.print_text("")
    for line in rendering.skipped(report):
        output.print_note("skipped", line, output.DIM)
    for op, reason in report.refused.items():
        output.print_note(f"{op} is refused here", reason, output.DOUBTFUL)
    output.print_text(rendering.sentence(report), output.BAD if report.failed else output.GOOD)


def _show_findings(outcome: Outcome) -> None:
    """Print what is wrong with one op under one check."""
    from vllm_ir_testkit import rendering

    style = output.BAD if outcome.state == "failed" else output.DOUBTFUL
    demands = checks.find(outcome.check).sentence
    output.print_text(f"{outcome.op}: {outcome.check}: {demands}", style)
    for line in rendering.findings(outcome):
        output.print_text(f"  {line}", indent=4)
    output.print_text("")
