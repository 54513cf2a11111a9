"""`vllm-ir explain OP`: every candidate in order, who put it there, and why it does or does not run.

Live, the real predicates are asked with fake tensors: nothing is computed, nothing allocated. `--static` asks files
alone, and so can ask about another machine, by the name of its platform.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vllm_ir.cli import output
from vllm_ir.cli.arguments import parse
from vllm_ir.cli.facts import broken_lock, complain_of_a_stop, preferences, survey_here
from vllm_ir.cli.listing import describe_platform
from vllm_ir.errors import (
    CallError,
    ConfigurationError,
    LoadingStopped,
    LockMismatch,
    TorchMissing,
    WrongArguments,
)
from vllm_ir.plugins.forecast import AT_RUN_TIME
from vllm_ir.priority import Layer, Wish, parse_arguments
from vllm_ir.verdict import NOT_REACHED, UNLISTED, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vllm_ir.errors import IrError
    from vllm_ir.plugins.records import ProviderRecord
    from vllm_ir.verdict import Explanation


@dataclass(frozen=True, slots=True)
class Answer:
    """What is shown.

    Attributes:
        explanation: the candidates and their verdicts.
        platform: facts of the machine.
        policy: the files that say who may run.
        arguments: the arguments that predicates saw, as text; None where none were asked.
        doubts: sentences about what this answer cannot know.
        problem: the error that a run would stop with, or None.
    """

    explanation: Explanation
    platform: dict[str, Any]
    policy: tuple[str, ...]
    arguments: str | None
    doubts: tuple[str, ...]
    problem: IrError | None


def run(arguments: list[str]) -> int:
    """Run `vllm-ir explain` and return its exit code."""
    lists, rest = parse_arguments(arguments)
    parser = argparse.ArgumentParser(
        prog="vllm-ir explain",
        description="Show which kernel an op runs, who decided that, and why the others do not.",
        epilog="--ir-op-priority.<op>=a,b puts providers first, as for any host.",
    )
    parser.add_argument("op", help="name of the op")
    parser.add_argument(
        "--args",
        metavar="SPEC",
        help="the call's arguments: x=bf16[4,64],weight=bf16[64],epsilon=1e-6; strides behind sizes, bf16[4,64:192,1]",
    )
    parser.add_argument("--static", action="store_true", help="from files alone; no provider and no torch is imported")
    parser.add_argument(
        "--platform", metavar="NAME", help="on another machine, from files: cpu, cuda:9.0, rocm:gfx942, xpu"
    )
    parser.add_argument("--compiling", action="store_true", help="for a graph that Inductor compiles")
    parser.add_argument("--json", action="store_true", help="print an object for programs")
    options = parser.parse_args(rest)
    # What another machine's providers would answer cannot be asked here, so its name alone asks for files.
    static = options.static or options.platform is not None
    if static and options.args is not None:
        flag = "--static" if options.static else "--platform"
        parser.error(f"--args are judged by a provider's code, which {flag} does not import; leave one of them out")
    try:
        answer = (
            _forecast(options.op, lists, options.platform, compiling=options.compiling)
            if static
            else _ask(options.op, options.args, lists, compiling=options.compiling)
        )
    except LockMismatch as error:
        raise LoadingStopped(reason=str(error)) from error
    except CallError as error:
        if options.args is None:  # the op's own example, which is its author's
            raise
        raise WrongArguments(reason=str(error)) from error
    if options.json:
        _print_json(answer, static=static)
    else:
        _print_table(answer)
    if answer.problem is not None:
        return complain_of_a_stop(answer.problem)
    return 0 if answer.explanation.selected else 1


def _forecast(op: str, lists: Mapping[str, Sequence[str]], platform: str | None, *, compiling: bool) -> Answer:
    """Return what files tell."""
    from vllm_ir.plugins.forecast import forecast

    found, asked_for = survey_here(platform), preferences()
    wishes = {name: Wish(Layer.COMMAND_LINE, tuple(names)) for name, names in lists.items()}
    asked_for.replace(Layer.COMMAND_LINE, wishes)
    told = forecast(op, found, asked_for, compiling=compiling, tensors=found.platform.device_type)
    if told.problem is not None and getattr(told.problem, "layer", None) == Layer.COMMAND_LINE.label:
        # What was typed is checked before anything is shown, as it is when a run reads the same flag.
        raise told.problem
    problem, files = told.problem or broken_lock(found), asked_for.policy.files
    return Answer(told.explanation, found.platform.describe(), files, None, told.doubts, problem)


def _ask(op: str, spec: str | None, lists: Mapping[str, Sequence[str]], *, compiling: bool) -> Answer:
    """Return what the process itself answers, with every provider loaded."""
    if find_spec("torch") is None:
        raise TorchMissing(verb="explain", instead="vllm-ir explain --static")
    from vllm_ir.cli import stand_ins
    from vllm_ir.config import IrOpPriorityConfig
    from vllm_ir.plugins.discovery import load_around_conflicts
    from vllm_ir.reporting import explain
    from vllm_ir.runtime import current

    written = None if spec is None else parse(spec)
    state, found = current(), load_around_conflicts()
    target = state.registry.get(op)
    IrOpPriorityConfig(lists).apply(Layer.COMMAND_LINE)
    device = state.platform.device_type
    given = stand_ins.example(target, device) if written is None else stand_ins.written(target, written, device)
    stand_ins.check_call(target, given)  # kernels look at what it has let through
    told = explain(target, *given, compiling=compiling)
    told = replace(told, verdicts=(*told.verdicts, *_left_out(told, found.providers if found else ())))
    for doubt in found.doubts if found else ():
        output.complain(doubt)
    problem = found.conflicts[0] if found and found.conflicts else _problem(op)
    names = target.declaration.signature.names
    words = ",".join(f"{name}={stand_ins.in_words(value)}" for name, value in zip(names, given, strict=False))
    return Answer(told, state.platform.describe(), state.policy.files, words, (), problem)


def _left_out(told: Explanation, providers: Sequence[ProviderRecord]) -> Iterator[Verdict]:
    """Yield a verdict on every provider that would have the op and cannot run here, so that no list names it."""
    seen = {each.provider for each in told.verdicts}
    for each in providers:
        if each.reason and each.name not in seen and each.manifest and told.op in each.manifest.ops:
            seen.add(each.name)
            yield Verdict(each.name, "", accepted=False, reason=each.reason)


def _problem(op: str) -> ConfigurationError | None:
    """Return the error that the first call of an op would stop with, or None."""
    from vllm_ir.runtime import current

    state = current()
    try:
        state.check_names()
        target = state.registry.get(op)
        state.check(target, state.candidates(target))
    except ConfigurationError as error:
        return error
    return None


def _print_json(answer: Answer, *, static: bool) -> None:
    """Print the answer for programs."""
    told = answer.explanation
    output.emit_json(
        {
            "op": told.op,
            "static": static,
            "compiling": told.compiling,
            "platform": answer.platform,
            "policy": list(answer.policy),
            "arguments": answer.arguments,
            "selected": told.selected,
            "candidates": _candidates(told),
            "parts": [_part(each) for each in told.parts],
            "doubts": list(answer.doubts),
            "error": str(answer.problem) if answer.problem else None,
        }
    )


def _candidates(told: Explanation) -> list[dict[str, Any]]:
    """Return the candidates of an op for programs."""
    return [
        {
            "provider": each.provider,
            "layer": each.layer or None,
            "accepted": each.accepted,
            "selected": each.selected,
            "reason": each.reason,
        }
        for each in told.verdicts
    ]


def _part(told: Explanation) -> dict[str, Any]:
    """Return what is said of one part of an op that runs unfused."""
    parts = [_part(each) for each in told.parts]
    return {"op": told.op, "selected": told.selected, "candidates": _candidates(told), "parts": parts}


def _print_parts(told: Explanation, indent: int) -> None:
    """Print who runs each part of an op that runs unfused, a line each."""
    for part in told.parts:
        runs = part.selected or "nothing may run"
        output.print_text(f"{' ' * indent}part {part.op}: {runs}", output.PLAIN, indent=indent)
        _print_parts(part, indent + 2)


def _print_table(answer: Answer) -> None:
    """Print the answer for a person."""
    told = answer.explanation
    mode = "compiling" if told.compiling else "eager"
    output.print_text(f"{told.op}, {mode}, on {describe_platform(answer.platform)}", output.DIM)
    for file in answer.policy:
        output.print_text(f"under the policy of {file}", output.DIM, indent=2)
    if answer.arguments:
        output.print_text(f"asked with {answer.arguments}", output.DIM, indent=2)
    print()
    runs = "runs" if answer.problem is None else "would run"
    rows = [_row(number, each, runs) for number, each in enumerate(told.verdicts, 1)]
    output.print_table(("", "provider", "put there by", "verdict"), rows)
    _print_parts(told, 2)
    if answer.doubts:
        print()
    for doubt in answer.doubts:
        output.print_text(f"  {doubt}", output.DOUBTFUL, indent=4)
    if not told.selected and answer.problem is None:
        print()
        waiting = next((each.reason for each in told.verdicts if each.accepted and each.reason), None)
        why = waiting.removeprefix(NOT_REACHED) if waiting else "every candidate refuses"
        output.print_text(f"Nothing may run: {why}.", output.BAD)


def _row(number: int, each: Verdict, runs: str) -> tuple[output.Cell, ...]:
    """Return the cells of one candidate."""
    text, style = _verdict(each, runs)
    return (
        (">" if each.selected else str(number), output.BOLD if each.selected else output.DIM),
        (each.provider, output.BOLD),
        (each.layer or "no list", output.PLAIN),
        (text, style),
    )


def _verdict(each: Verdict, runs: str) -> output.Cell:
    """Return a verdict in words; what its row says already is not said again."""
    if each.selected:
        return (f"{runs}, {each.reason}" if each.reason else runs, output.GOOD)
    if each.accepted:
        return ("stands by", output.PLAIN)
    if each.reason == UNLISTED:
        return ("not asked", output.DIM)
    if each.reason == AT_RUN_TIME:
        return (f"not known: {each.reason}", output.DOUBTFUL)
    reason = re.sub(rf"^Provider {re.escape(repr(each.provider))}(?: of \S+)? ", "it ", each.reason or "")
    return (f"no: {reason}", output.DOUBTFUL)
