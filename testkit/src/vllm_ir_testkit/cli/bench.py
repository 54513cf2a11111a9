"""`vllm-ir bench`: every provider that can run an op, side by side, against a copy, native and compiled native."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vllm_ir.cli import output

from vllm_ir_testkit.cli.progress import bar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vllm_ir_testkit.bench.results import Benchmark
    from vllm_ir_testkit.bench.tuning import Tuned


def run(arguments: list[str]) -> int:
    """Time providers and say what came of it.

    Args:
        arguments: the command line behind the verb.

    Returns:
        0, 1 when a provider's values are not native's, 3 when nothing could be timed.

    Raises:
        ConfigurationError: a name or an option does not fit.
    """
    options = _parser().parse_args(arguments)
    if options.tune or options.tune_into is not None:
        return tune(options)
    if options.plot is not None:
        from vllm_ir_testkit.bench import plot

        plot.check(options.plot)
    from vllm_ir_testkit.bench import requests

    sizes, dtypes = requests.read_sizes(options.shapes), requests.read_dtypes(options.dtypes)
    with bar("measuring") as tell:
        from vllm_ir_testkit.bench.measuring import bench

        ops = requests.read_ops(options.op)
        benchmark = bench(
            ops,
            requests.read_providers(options.providers, ops),
            sizes,
            dtypes,
            blocks=options.blocks,
            compiled=not options.no_compiled,
            functional=options.functional,
            tell=tell,
        )
    if options.json:
        output.emit_json(benchmark.describe())
    else:
        show(benchmark)
    if options.plot is not None and benchmark.measured:
        plot.draw(benchmark, options.plot)
    if not benchmark.measured:
        return 3
    return int(any(row.timing is not None and row.note for row in benchmark.rows))


def tune(options: argparse.Namespace) -> int:
    """Try the launches that providers offer, and keep the fastest.

    Returns:
        0, 1 when a launch gave wrong values, 3 when nothing could be tried.

    Raises:
        ConfigurationError: a name or an option does not fit.
    """
    import pathlib

    from vllm_ir_testkit.bench import requests, tuning

    sizes, dtypes = requests.read_sizes(options.shapes), requests.read_dtypes(options.dtypes)
    ops = requests.read_ops(options.op)
    providers = requests.read_providers(options.providers, ops)
    path = None if options.tune_into is None else pathlib.Path(options.tune_into)
    with bar("tuning") as tell:
        rows, files = tuning.tune(
            ops, tuning.tuners(providers), sizes, dtypes, blocks=options.blocks, path=path, tell=tell
        )
    if options.json:
        output.emit_json({"tuned": [row.describe() for row in rows], "files": [str(file) for file in files]})
    else:
        show_tuned(rows, files)
    tried = [row for row in rows if row.tried]
    return int(any(row.note for row in tried)) if tried else 3


def show_tuned(rows: Sequence[Tuned], files: Sequence[Path]) -> None:
    """Print what was tried for a person, and where it was written."""
    from vllm_ir_testkit.bench import table

    headings = ("provider", "op", "dtype", "size", "tried", "before", "µs", "fastest", "µs", "")
    body = []
    for row in rows:
        before, after = ("", "") if row.seconds is None else (table.number(each * 1e6) for each in row.seconds)
        cells = (row.provider, row.op, row.dtype, row.size, str(row.tried), row.before, before, row.after, after)
        style = output.PLAIN if row.tried else output.DIM
        body.append([*((cell, style) for cell in cells), (row.note, output.BAD if row.tried else output.DIM)])
    if body:
        output.print_table(headings, body)
    else:
        output.print_text("No provider here offers launches to choose from.")
    for file in files:
        output.print_text(f"written to {file}")
    if any(row.tried for row in rows) and not files:
        output.print_text("Nothing was written: no other launch was faster.")


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's options."""
    from vllm_ir_testkit.bench.requests import SHAPES

    parser = argparse.ArgumentParser(
        prog="vllm-ir bench",
        description="Time every provider that can run an op, in one process, over inputs that no cache holds.",
        epilog="Exit codes: 0 clean, 1 a provider's values are not native's, 2 usage or configuration, 3 nothing ran.",
    )
    parser.add_argument("--op", action="append", default=[], metavar="OP", help="only this op; may be repeated")
    parser.add_argument("--providers", metavar="A,B", help="only these (all that implement one of the ops)")
    parser.add_argument("--shapes", default=SHAPES, metavar="TxH,...", help=f"tokens x hidden size ({SHAPES})")
    parser.add_argument("--dtypes", default="bf16,f32", metavar="D,...", help="dtypes (bf16,f32)")
    parser.add_argument("--blocks", type=_positive, default=9, metavar="N", help="blocks that each median is of (9)")
    parser.add_argument("--no-compiled", action="store_true", help="leave out compiled native, which is slow to make")
    parser.add_argument("--functional", action="store_true", help="time default where an op has a maybe_inplace")
    parser.add_argument("--tune", action="store_true", help="try the launches that providers offer, keep the fastest")
    parser.add_argument("--tune-into", metavar="FILE", help="the same, and write them to this file")
    parser.add_argument("--plot", metavar="FILE", help="draw the result into a .png or .svg file")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    return parser


def _positive(text: str) -> int:
    """Return a whole number above zero."""
    value = int(text)
    if value < 1:
        message = f"{text} is no number of blocks; wanted 1 or more"
        raise argparse.ArgumentTypeError(message)
    return value


def show(benchmark: Benchmark) -> None:
    """Print a benchmark for a person, a block of rows per op, dtype and size."""
    from vllm_ir_testkit.bench import table
    from vllm_ir_testkit.bench.measuring import CLONE, COMPILED, COPY

    machine = f"{benchmark.device}, {benchmark.threads} threads, torch {benchmark.torch}"
    output.print_text(f"{machine}; medians of {benchmark.blocks} blocks", output.DIM)
    if benchmark.disturbed:
        output.print_text(
            f"The load was {benchmark.load} before it began: other work took part, and these figures say little.",
            output.DOUBTFUL,
        )
    for title, rows in table.groups(benchmark).items():
        output.print_text("")
        output.print_text(title, output.BOLD)
        body = []
        for row in rows:
            style = output.DIM if row.contender in {COMPILED, COPY, CLONE} or row.timing is None else output.PLAIN
            *numbers, note = table.cells(row)
            body.append([*((cell, style) for cell in numbers), (note, output.BAD if row.timing else output.DIM)])
        output.print_table(table.HEADINGS, body)
