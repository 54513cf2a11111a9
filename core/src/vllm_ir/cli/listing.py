"""`vllm-ir list`: every provider that is installed, in what state, and why not where it cannot run.

Static: files are read and nothing is imported. `--load` imports in a child process, so that a crash is its own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import errors
from vllm_ir.cli import output
from vllm_ir.cli.facts import broken_lock, complain_of_a_stop, preferences, survey_here
from vllm_ir.platforms import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING: Final = 3
"""Exit code where there is nothing to list."""

_WIDE: Final = 130
"""Columns from which on the names of ops fit beside the rest."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What was found: the machine, and the distributions as their records describe themselves.

    Attributes:
        platform: facts of this machine.
        distributions: what `DistributionRecord.describe` gives, one each.
        doubts: sentences about the operator's lists that are no error but look like a mistake.
        policy: the files that say who may run.
        problem: what the lock in force would stop a run with, or None.
    """

    platform: dict[str, Any]
    distributions: tuple[dict[str, Any], ...]
    doubts: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    problem: errors.IrError | None = None

    @property
    def providers(self) -> list[dict[str, Any]]:
        """Every provider, those of distributions that cannot even be read included."""
        return [each for one in self.distributions for each in (one["providers"] or [_nameless(one)])]

    @property
    def usable(self) -> list[dict[str, Any]]:
        """The providers that run, or may run as far as files tell."""
        return [each for each in self.providers if each["failure"] is None]

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The providers that somebody has to mend."""
        return [each for each in self.providers if each["failure"] and each["failure"]["fault"]]


def _nameless(one: dict[str, Any]) -> dict[str, Any]:
    """Return a provider's row for a distribution whose providers are not known, under its entry point's name."""
    return {
        "name": one["entry_point"],
        "distribution": one["name"],
        "version": one["version"],
        "state": "not usable" if one["failure"] else "brings no provider",
        "ops": [],
        "platforms": [],
        "dtypes": None,
        "refused_ops": {},
        "failure": one["failure"],
    }


def run(arguments: list[str]) -> int:
    """Run `vllm-ir list` and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir list", description="List the installed providers; without --load nothing is imported."
    )
    parser.add_argument(
        "--all", action="store_true", help="also those that are not for this machine or not wanted, and why"
    )
    parser.add_argument("--load", action="store_true", help="import them in a child process and show what breaks")
    parser.add_argument(
        "--platform", metavar="NAME", help="judged for another machine: cpu, cuda:9.0, rocm:gfx942, xpu"
    )
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    options = parser.parse_args(arguments)
    if options.load and options.platform is not None:
        parser.error("--load imports on this machine, and --platform asks about another; leave one of them out")
    if options.load and find_spec("torch") is None:
        raise errors.TorchMissing(verb="list --load", instead="vllm-ir list")
    found = load() if options.load else read(options.platform)
    shown = found.providers if options.all else found.usable
    if options.json:
        _print_json(found, shown)
    else:
        # What somebody has to mend is shown to a person who did not ask for it, too.
        rows = [each for each in found.providers if each in shown or each in found.faults]
        _print_table(found, rows, everything=options.all)
    if found.problem is not None:
        return complain_of_a_stop(found.problem)
    if found.faults:
        return 1
    return 0 if shown else NOTHING


def _print_json(found: Inventory, shown: Sequence[dict[str, Any]]) -> None:
    """Print the platform, the distributions and the providers shown."""
    output.emit_json(
        {
            "platform": found.platform,
            "policy": list(found.policy),
            "providers": list(shown),
            "distributions": [
                {key: value for key, value in one.items() if key != "providers"} for one in found.distributions
            ],
            "doubts": [*preferences().settings.doubts, *found.doubts],
            "usable": len(found.usable),
            "not_usable": len(found.providers) - len(found.usable),
            "faults": len(found.faults),
            "error": str(found.problem) if found.problem else None,
        }
    )


def _print_table(found: Inventory, shown: Sequence[dict[str, Any]], *, everything: bool) -> None:
    """Print the machine, a row a provider, and a paragraph for whatever needs one."""
    output.print_text(describe_platform(found.platform), output.DIM)
    for file in found.policy:
        output.print_text(f"under the policy of {file}", output.DIM, indent=2)
    if shown:
        print()
        output.print_table(("provider", "state", "platforms", "ops", "distribution"), [_row(each) for each in shown])
    notes = [note for each in shown for note in _notes(each)]
    notes += [note for one in found.distributions for note in _shadows(one)]
    notes += [("", doubt, output.DOUBTFUL) for doubt in found.doubts]
    if notes:
        print()
    for name, text, style in dict.fromkeys(notes):
        output.print_note(name, text, style)
    for one in found.distributions:
        _print_tracebacks(one)
    print()
    output.print_text(_summary(found, everything=everything))


def describe_platform(platform: dict[str, Any]) -> str:
    """Return this machine in a line."""
    devices = platform["devices"]
    first = devices[0] if devices else {"name": "no device found", "capability": None, "gfx": None}
    kind = " ".join(filter(None, [first["capability"], first["gfx"]]))
    many = f"{len(devices)} x " if len(devices) > 1 else ""
    name = f"{platform['name']}{f' {kind}' if kind else ''}"
    if platform.get("named"):
        return f"{name}, as it was named"
    return f"{name}: {many}{first['name']}, torch {platform['torch_build']}"


def _row(each: dict[str, Any]) -> tuple[output.Cell, ...]:
    """Return the cells of one provider."""
    failure = each["failure"]
    if failure:
        state = (failure["kind"], output.BAD if failure["fault"] else output.DOUBTFUL)
    else:
        state = (each["state"], output.GOOD if each["state"] == "loaded" else output.PLAIN)
    narrow = output.terminal_width() < _WIDE
    ops = str(len(each["ops"]) or "-") if narrow else ", ".join(each["ops"])
    # A list of architectures would leave the other columns no room; `show` has it.
    needs = [need.partition(" (")[0] if narrow else need for need in each["platforms"]]
    platforms = "all" if narrow and set(needs) >= set(BUILT_IN) else ", ".join(needs)
    return (
        (each["name"], output.BOLD),
        state,
        (platforms or "-", output.PLAIN),
        (ops or "-", output.PLAIN),
        (f"{each['distribution']} {each['version']}", output.PLAIN),
    )


def _notes(each: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the paragraphs about one provider: why it does not run, or which of its ops do not."""
    if each["failure"]:
        style = output.BAD if each["failure"]["fault"] else output.DOUBTFUL
        return [("", each["failure"]["reason"], style)]
    return [(f"{each['name']}, {op}", reason, output.BOLD) for op, reason in each["refused_ops"].items()]


def _shadows(one: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the paragraphs about further copies of one distribution."""
    return [
        (
            one["name"],
            f"version {copy['version']} in {copy['location']} is hidden by {one['version']}.",
            output.DOUBTFUL,
        )
        for copy in one["shadowed"]
    ]


def _print_tracebacks(one: dict[str, Any]) -> None:
    """Print the traceback of a distribution that broke, each once."""
    failures = [one["failure"], *(each["failure"] for each in one["providers"])]
    for text in dict.fromkeys(failure["traceback"] for failure in failures if failure and failure["traceback"]):
        print()
        output.print_text(f"{one['name']} {one['version']}:", output.BOLD)
        output.print_verbatim(text)


def _summary(found: Inventory, *, everything: bool) -> str:
    """Return how many there are, and how to see the others."""
    usable, others = len(found.usable), len(found.providers) - len(found.usable)
    loaded = any(each["state"] == "loaded" for each in found.usable)
    where = "there" if found.platform.get("named") else "here"
    parts = [f"{usable} {'provider' if usable == 1 else 'providers'} {'can' if loaded else 'may'} run {where}"]
    if others:
        told = everything or others == len(found.faults)
        parts.append(f"{others} cannot{'' if told else ' (vllm-ir list --all tells why)'}")
    if found.faults:
        parts.append(f"{len(found.faults)} of them broken")
    stops = "A run would stop here. But for that, " if found.problem is not None else ""
    return stops + ", ".join(parts) + "."


def read(platform: str | None = None) -> Inventory:
    """Return what files tell; nothing is imported.

    Args:
        platform: the name of the machine's platform; this machine when None.
    """
    found = survey_here(platform, quiet=True)
    described = tuple(one.describe() for one in found.distributions)
    files = preferences().policy.files
    return Inventory(found.platform.describe(), described, found.doubts, files, broken_lock(found))


def load() -> Inventory:
    """Return what a child process finds when it loads every provider.

    Raises:
        LoadingStopped: the operator's lists stop it.
    """
    from vllm_ir.plugins.probe import load_in_child

    found = load_in_child()
    if "error" not in found:
        files = preferences().policy.files
        return Inventory(found["platform"], tuple(found["distributions"]), tuple(found["doubts"]), files)
    if issubclass(getattr(errors, found["error_class"], Exception), (errors.ConfigurationError, errors.LockMismatch)):
        raise errors.LoadingStopped(reason=found["error"])
    raise errors.InternalError(what=found["error"])
