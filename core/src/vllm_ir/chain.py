"""The candidates of an op in order as one generated function with the op's exact parameters.

Which candidates there are, and what a refusal leads to, is decided above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_ir.generation import make_function
from vllm_ir.names import RESERVED_PREFIX as PREFIX
from vllm_ir.verdict import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One candidate as a chain sees it.

    Attributes:
        function: the implementation.
        predicate: its `supports_args`, or None.
        device: the test that its tensors are where its kernels take them, such as "x.is_cuda"; None asks nothing.
        foreign: called with all arguments where that test fails; returns the refusal.
        copied: parameters that get a copy, because the implementation writes to them and must not.
        refused: called with a refusal, or with an answer that is no verdict.
        raised: called with what the predicate raised; returns the refusal.
        counted: called before the implementation runs; None counts nothing.
        seen: reasons that `refused` need not hear again; None when it wants only answers that are no verdict.
        told: not empty when `refused` need not hear a plain False again.
    """

    function: Callable[..., Any]
    predicate: Callable[..., Any] | None
    device: str | None
    foreign: Callable[..., Unsupported | None]
    copied: tuple[str, ...]
    refused: Callable[[object], None]
    raised: Callable[[Exception], Unsupported]
    counted: Callable[[], object] | None
    seen: set[str] | None
    told: list[str]

    @property
    def conditional(self) -> bool:
        """Whether it may hand the call on."""
        return self.predicate is not None or self.device is not None


def make_chain(
    name: str, names: Sequence[str], steps: Sequence[Step], exhausted: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that tries candidates in order, each with the op's arguments by position.

    Args:
        name: the op's name.
        names: the op's parameters.
        steps: the candidates; those behind an unconditional one are never reached.
        exhausted: called with all arguments when every candidate refused; raises.
    """
    first = steps[0] if steps else None
    if first is not None and not first.conditional and not first.copied and first.counted is None:
        return first.function
    arguments = ", ".join(names)
    scope = _scope(exhausted)
    lines = [f"def {name}_chain({arguments}):"]
    for i, step in enumerate(steps):
        scope |= {
            f"{PREFIX}function_{i}": step.function,
            f"{PREFIX}predicate_{i}": step.predicate,
            f"{PREFIX}refused_{i}": step.refused,
            f"{PREFIX}raised_{i}": step.raised,
            f"{PREFIX}counted_{i}": step.counted,
            f"{PREFIX}seen_{i}": step.seen,
            f"{PREFIX}told_{i}": step.told,
            f"{PREFIX}foreign_{i}": step.foreign,
        }
        lines += _step_lines(i, step, arguments, names)
        if not step.conditional:
            break
    else:
        lines.append(f"    return {PREFIX}exhausted({arguments})")
    return make_function("\n".join(lines), f"{name}_chain", scope)


def make_plain_chain(
    name: str, names: Sequence[str], steps: Sequence[Step], exhausted: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a chain that Dynamo can trace: no counting, no record of refusals, no exception handled."""
    arguments = ", ".join(names)
    scope = _scope(exhausted)
    lines = [f"def {name}_plain_chain({arguments}):"]
    for i, step in enumerate(steps):
        scope |= {f"{PREFIX}function_{i}": step.function, f"{PREFIX}predicate_{i}": step.predicate}
        tests = [step.device] if step.device else []
        tests += [f"{PREFIX}predicate_{i}({arguments})"] if step.predicate is not None else []
        call = f"return {PREFIX}function_{i}({_handed(names, step.copied)})"
        lines += [f"    if {' and '.join(tests)}:", f"        {call}"] if tests else [f"    {call}"]
        if not step.conditional:
            break
    else:
        lines.append(f"    return {PREFIX}exhausted({arguments})")
    made = make_function("\n".join(lines), f"{name}_plain_chain", scope)
    # Dynamo's guard on a function is one on its code, and code of the same source is shared.
    made.__code__ = made.__code__.replace()
    return made


def _step_lines(i: int, step: Step, arguments: str, names: Sequence[str]) -> list[str]:
    """Return the lines of one candidate."""
    run = [f"{PREFIX}counted_{i}()"] if step.counted is not None else []
    run.append(f"return {PREFIX}function_{i}({_handed(names, step.copied)})")
    indent = "    "
    if step.device is None:
        return _asked_lines(i, step, arguments, run, indent)
    deeper = indent * 2
    lines = [f"{indent}if {step.device}:"]
    lines += _asked_lines(i, step, arguments, run, deeper)
    if step.seen is not None:
        lines += [
            f"{indent}else:",
            f"{deeper}{PREFIX}answer = {PREFIX}foreign_{i}({arguments})",
            f"{deeper}if {PREFIX}answer.reason not in {PREFIX}seen_{i}:",
            f"{deeper}    {PREFIX}refused_{i}({PREFIX}answer)",
        ]
    return lines


def _asked_lines(i: int, step: Step, arguments: str, run: Sequence[str], indent: str) -> list[str]:
    """Return the lines that ask a candidate's predicate, and run it if that accepts; without one they only run it."""
    if step.predicate is None:
        return [indent + line for line in run]
    lines = [
        f"{indent}try:",
        f"{indent}    {PREFIX}answer = {PREFIX}predicate_{i}({arguments})",
        f"{indent}except Exception as {PREFIX}error:",
        f"{indent}    {PREFIX}answer = {PREFIX}raised_{i}({PREFIX}error)",
        f"{indent}if {PREFIX}answer is True:",
        *(f"{indent}    {line}" for line in run),
    ]
    broken = f"type({PREFIX}answer) is not {PREFIX}Unsupported"
    if step.seen is None:
        # An answer that is no verdict must not pass unseen; what a plain refusal costs is the predicate's own.
        lines.append(f"{indent}if {PREFIX}answer is not False and {broken}:")
    else:
        lines += [
            f"{indent}if {PREFIX}answer is False:",
            f"{indent}    if not {PREFIX}told_{i}:",
            f"{indent}        {PREFIX}refused_{i}({PREFIX}answer)",
            f"{indent}elif {broken} or {PREFIX}answer.reason not in {PREFIX}seen_{i}:",
        ]
    return [*lines, f"{indent}    {PREFIX}refused_{i}({PREFIX}answer)"]


def _handed(names: Sequence[str], copied: Sequence[str]) -> str:
    """Return the arguments as an implementation gets them, with contiguous copies of those it writes to."""
    return ", ".join(f"{name}.clone(memory_format={PREFIX}contiguous)" if name in copied else name for name in names)


def _scope(exhausted: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that every chain uses."""
    import torch

    return {
        f"{PREFIX}Unsupported": Unsupported,
        f"{PREFIX}exhausted": exhausted,
        f"{PREFIX}contiguous": torch.contiguous_format,
    }
