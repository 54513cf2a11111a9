"""`vllm-ir show NAME`: one provider or one op in full, from manifests and sources; nothing is imported."""

from __future__ import annotations

import argparse
from typing import Any

from vllm_ir.cli import output
from vllm_ir.cli.arguments import DTYPES
from vllm_ir.cli.facts import broken_lock, complain_of_a_stop, describe_op, describe_provider, survey_here
from vllm_ir.errors import UnknownName
from vllm_ir.plugins.forecast import declared_ops


def run(arguments: list[str]) -> int:
    """Run `vllm-ir show` and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="vllm-ir show", description="Show one provider or op in full; nothing is imported."
    )
    parser.add_argument("name", help="of a provider or an op")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    options = parser.parse_args(arguments)
    found = survey_here()
    ops = declared_ops(found)
    providers = [(one, each) for one in found.distributions for each in one.providers if each.name == options.name]
    if not providers and options.name not in ops:
        names = [each.name for each in found.providers]
        raise UnknownName(name=options.name, ops=list(ops), providers=list(dict.fromkeys(names)))
    op = describe_op(options.name, found) if options.name in ops else None
    described = [describe_provider(one, each) for one, each in providers]
    if options.json:
        output.emit_json({"name": options.name, "op": op, "providers": described})
    else:
        _print(op, described)
    problem = broken_lock(found)
    if problem is not None:
        return complain_of_a_stop(problem)
    return 1 if any(each["failure"] and each["failure"]["fault"] for each in described) else 0


def _print(op: dict[str, Any] | None, providers: list[dict[str, Any]]) -> None:
    """Print an op, then each provider of the name."""
    if op:
        _print_op(op)
    for each in providers:
        if op or each is not providers[0]:
            print()
        _print_provider(each)


def _print_op(op: dict[str, Any]) -> None:
    """Print what an op means, and who implements it."""
    output.print_text(f"op {op['name']}", output.BOLD)
    output.print_facts(
        {
            "signature": op["signature"] or "",
            "declared by": op["distribution"] or "no installed distribution, so nothing can call it",
            "in": op["declared_at"] or "",
        }
    )
    if op["doc"]:
        print()
        output.print_paragraphs(op["doc"])
    print()
    output.print_table(
        ("provider", "state", "in place", "invariant", "default on", "dtypes"),
        [
            (
                (each["provider"], output.BOLD),
                (each["state"], output.DOUBTFUL if each["reason"] else output.PLAIN),
                *_properties(each),
            )
            for each in op["implementations"]
        ],
    )
    _print_reasons(op["implementations"])


def _print_provider(each: dict[str, Any]) -> None:
    """Print what a provider is, and what it implements."""
    failure = each["failure"]
    output.print_text(f"provider {each['name']}", output.BOLD)
    output.print_facts(
        {
            "summary": each["summary"] or "",
            "distribution": f"{each['distribution']} {each['version']}",
            "location": each["location"],
            "hooks": each["module"],
            "url": each["url"] or "",
            "state": f"{failure['kind']}: {failure['reason']}" if failure else each["state"],
            "note": each.get("note") or "",
            "platforms": ", ".join(each["platforms"]),
            "dtypes": _dtypes(each["dtypes"]),
            "requires": ", ".join(f"{name}{versions}" for name, versions in each["requires"].items()),
            "rank": str(each["rank"] or ""),
            "graph passes": ", ".join(each["adds_passes"]),
            "defaults": "decided by a hook at run time" if each["defaults_at_run_time"] else "",
        }
    )
    for copy in each["shadowed"]:
        output.print_text(f"hidden copy: version {copy['version']} in {copy['location']}", output.DOUBTFUL)
    if each["implementations"]:
        print()
        output.print_table(
            ("op", "in place", "invariant", "default on", "dtypes"),
            [((op, output.BOLD), *_properties(one)) for op, one in each["implementations"].items()],
        )
    kernels = {op: one["kernels"] for op, one in each["implementations"].items() if one["kernels"]}
    if kernels:
        print()
        own = [op for op in each["implementations"] if op not in kernels]
        output.print_text("kernels", output.BOLD)
        for op, text in kernels.items():
            output.print_note(op, text)
        if own:
            output.print_note(", ".join(own), "its own.")
    if not failure:
        _print_reasons(list(each["implementations"].values()))


def _print_reasons(implementations: list[dict[str, Any]]) -> None:
    """Print why those that cannot run here cannot, each reason once."""
    reasons = dict.fromkeys(each["reason"] for each in implementations if each["reason"])
    if reasons:
        print()
    for reason in reasons:
        output.print_text(f"  {reason}", output.DOUBTFUL, indent=4)


def _properties(each: dict[str, Any]) -> tuple[output.Cell, ...]:
    """Return the cells about one implementation: in place, batch-invariant, default on, dtypes."""
    return (
        ("yes" if each["inplace"] else "no", output.PLAIN),
        ("yes" if each["batch_invariant"] else "no", output.PLAIN),
        (_defaults(each), output.PLAIN),
        (_dtypes(each["dtypes"]), output.PLAIN),
    )


def _dtypes(dtypes: list[str] | None) -> str:
    """Return dtypes by their short names."""
    short = {name: brief for brief, name in reversed(DTYPES.items())}
    return "any" if dtypes is None else " ".join(short.get(name, name) for name in dtypes)


def _defaults(each: dict[str, Any]) -> str:
    """Return where an implementation wants to be in the default list."""
    eager, compiling = each["default_eager"], each["default_compiling"]
    if eager == compiling:
        return ", ".join(eager) or "-"
    parts = [("eager", eager), ("compiling", compiling)]
    return "; ".join(f"{', '.join(platforms)} ({mode})" for mode, platforms in parts if platforms)
