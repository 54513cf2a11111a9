"""`vllm-ir doctor`: one report for a bug report, from files; `--probe` runs every provider, each in its own process.

On a terminal it is laid out for a reader, in a pipe it is Markdown, to be pasted as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vllm_ir import errors
from vllm_ir.cli import output, pages
from vllm_ir.diagnosis import children, report
from vllm_ir.diagnosis.probe import AGREES, DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vllm_ir.diagnosis.report import Report
    from vllm_ir.diagnosis.results import ProbeResult
    from vllm_ir.plugins.records import Failure


def run(arguments: list[str]) -> int:
    """Run `vllm-ir doctor` and return its exit code: 1 where somebody has to mend something."""
    options = _parser().parse_args(arguments)
    if options.probe and find_spec("torch") is None:
        raise errors.TorchMissing(verb="doctor --probe", instead="vllm-ir doctor")
    told = report.examine()
    if options.probe:
        wanted = children.targets(told.found, told.policy)
        with _progress(len(wanted)) as advance:
            told = told.with_probes(
                children.probe(wanted, timeout=options.timeout, jobs=options.jobs, told=lambda _: advance())
            )
    if options.json:
        output.emit_json(told.describe())
    else:
        pages.show(_title(told), _sections(told))
    return 1 if told.findings else 0


def _parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir doctor", description="Tell what a bug report needs; without --probe nothing is imported."
    )
    parser.add_argument(
        "--probe", action="store_true", help="warm up and run every provider, each in a child process of its own"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=children.TIMEOUT,
        metavar="SECONDS",
        help=f"how long one step of a probe may take (default {children.TIMEOUT:g})",
    )
    parser.add_argument("--jobs", type=_count, metavar="N", help="how many probes at a time (default: one a core)")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    return parser


def _seconds(text: str) -> float:
    """Return a time above zero."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above zero")


def _count(text: str) -> int:
    """Return a number above zero."""
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Give what a bar on stderr advances by, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("running providers", total=total)
        yield lambda: bar.advance(task)


def _title(told: Report) -> str:
    """Return the report in a line."""
    count = len(told.findings)
    return f"vllm-ir doctor: {'nothing to mend' if not count else f'{count} finding' + 's' * (count > 1)}"


def _sections(told: Report) -> Iterator[pages.Section]:
    """Give what the report consists of, what somebody has to mend first."""
    yield pages.Section("findings", paragraphs=told.findings)
    yield pages.Section("versions", facts=told.versions)
    yield _machine(told.found.platform.describe())
    if told.probes is not None:
        yield _probes(told.probes)
    yield _distributions(told)
    yield pages.Section(
        "variables", ("variable", "value", "problem"), [(v.name, v.value, v.problem or "") for v in told.variables]
    )
    yield pages.Section(
        "files in force",
        ("file", "path", "named by", "permissions", "sha256", "problem or note"),
        [
            (f.role, f.path, f.named_by, f.mode or "-", (f.sha256 or "-")[:16], f.problem or f.note or "")
            for f in told.files
        ],
    )
    yield pages.Section(
        "cache folders",
        ("folder", "permissions", "files", "size", "free", "problem"),
        [
            (
                c.path,
                c.mode or ("not there" if c.problem else "not there yet"),
                str(c.files),
                _size(c.size),
                _size(c.free),
                c.problem or "",
            )
            for c in told.caches
        ],
    )
    for one in told.found.distributions:
        failures = [one.failure, *(each.failure for each in one.providers)]
        for text in dict.fromkeys(failure.traceback for failure in failures if failure and failure.traceback):
            yield pages.Section(f"traceback of {one.name} {one.version}", verbatim=text)
    for each in told.probes or ():
        yield from _details(each)


def _machine(platform: dict[str, Any]) -> pages.Section:
    """Return the section about the machine."""
    devices = [
        " ".join(filter(None, [device["name"], device["capability"], device["gfx"]])) for device in platform["devices"]
    ]
    return pages.Section(
        "machine",
        facts={
            "platform": platform["name"],
            "torch device": platform["device_type"],
            "driver": platform["driver"] or "",
            "cores": str(os.cpu_count() or "unknown"),
            **{f"device {place}": text for place, text in enumerate(devices)},
        },
    )


def _distributions(told: Report) -> pages.Section:
    """Return the section about what is installed."""
    rows: list[tuple[str, ...]] = []
    for one in told.found.distributions:
        where = (f"{one.name} {one.version}", one.location)
        for each in one.providers:
            left_out = "; ".join(f"{op}: {why}" for op, why in each.refused_ops)
            rows.append((each.name, _state(each.failure, each.state), *where, each.reason or left_out))
        if not one.providers:
            state = _state(one.failure, "brings no provider")
            rows.append((one.entry_point, state, *where, one.failure.reason if one.failure else ""))
        rows += [(one.name, "hidden copy", f"{one.name} {copy.version}", copy.location, "") for copy in one.shadowed]
    return pages.Section("distributions", ("provider", "state", "distribution", "location", "reason"), rows)


def _state(failure: Failure | None, otherwise: str) -> str:
    """Return the kind of a failure, or what is the case without one."""
    return failure.kind if failure else otherwise


def _probes(probes: Sequence[ProbeResult]) -> pages.Section:
    """Return the section about how providers fared when they were run."""
    rows = []
    for each in probes:
        good = [part for part in each.parts if part["outcome"] in (AGREES, DONE)]
        others = len(each.parts) - len(good)
        ran = f"{len(good)} of {len(good) + others}"
        rows.append((each.target.provider, each.outcome, f"{each.seconds:.1f} s", ran, each.reason or ""))
    return pages.Section("probe", ("provider", "outcome", "time", "as native", "reason"), rows)


def _details(each: ProbeResult) -> Iterator[pages.Section]:
    """Give what a probe that somebody has to look at left behind: its parts, its traceback, what it printed."""
    if not each.fault:
        return
    name = each.target.provider
    yield pages.Section(
        f"probe of {name}",
        ("what", "dtype", "outcome", "reason"),
        [(part["what"], part["dtype"] or "-", part["outcome"], part["reason"] or "") for part in each.parts],
    )
    if each.traceback:
        yield pages.Section(f"traceback of {name}", verbatim=each.traceback)
    if each.output:
        yield pages.Section(f"last lines of {name}", verbatim=each.output)


def _size(count: int | None) -> str:
    """Return bytes in the unit that a person reads."""
    if count is None:
        return "-"
    size, units = float(count), ["B", "KB", "MB", "GB", "TB"]
    while size >= 1024 and len(units) > 1:  # noqa: PLR2004 - what a unit has of the next smaller
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
