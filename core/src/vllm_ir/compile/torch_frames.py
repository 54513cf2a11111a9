"""What the program around a graph still holds when Dynamo compiles it: its result, its variables, its attributes.

Dynamo takes what a program was given and hands on as it is past the graph, which then does not show it. Its frame has
it while it calls a backend, under names that are not public.
"""

from __future__ import annotations

import linecache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm_ir.compile.graph import METADATA, value_of
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

RESULT: Final = "the function's result"
"""What holds a tensor that is returned."""

BREAK: Final = "code behind a graph break"
"""What holds a tensor that is read in a later graph, or in none."""


Held = tuple[Any, str, str]
"""A variable of Dynamo's, what holds it, and the line."""


class Kept(NamedTuple):
    """A tensor that the graph was given and that the program holds behind it.

    Attributes:
        tensor: its fake in the graph.
        holder: what holds it, in words.
        where: the line that does, as "file:line, in function: code".
    """

    tensor: torch.Tensor
    holder: str
    where: str


def kept_inputs() -> list[Kept]:
    """Return what of the inputs of the graph that is being compiled the program still holds; nothing outside of it.

    Variables count where one of their reads that may come is not about metadata alone: `x.shape` and `x is None` are.
    """
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        frame: Any = InstructionTranslator.current_tx()
    except AttributeError:
        return []
    try:
        at_the_end = _returned if frame.instruction_pointer is None else _left
        held = [*at_the_end(frame), *_stored(frame)]
        return [
            Kept(tensor, holder, where) for variable, holder, where in held if (tensor := _input(variable)) is not None
        ]
    except (AttributeError, ImportError) as error:
        # None of these names is public; a torch that has others compiles without this check.
        logger.debug("donated inputs are not looked for behind the graph, since this torch is another: %s", error)
        return []


def _returned(frame: Any) -> Iterator[Held]:
    """Give all that a frame returns."""
    here = _line(frame, frame.lineno)
    return ((variable, RESULT, here) for variable in _inside(frame.stack))


def _left(frame: Any) -> Iterator[Held]:
    """Give what a frame has left at a graph break: for the code that breaks it, and variables that may be read later.

    What is inside of those is not looked at, for nobody can tell which part of it is read.
    """
    here = _line(frame, frame.lineno)
    yield from ((variable, BREAK, here) for variable in frame.stack)
    for name, variable in frame.symbolic_locals.items():
        number = _read(frame, name)
        if number is not None:
            yield variable, BREAK, _line(frame, number)


def _stored(frame: Any) -> Iterator[Held]:
    """Give what was stored in attributes of objects; variables of closures are none, and need not outlive the call."""
    here = _line(frame, frame.lineno)
    for changes in frame.output.side_effects.store_attr_mutations.values():
        for name, value in changes.items():
            if name != "cell_contents":
                yield from ((variable, f"attribute {name!r}", here) for variable in _inside(value))


def source_name(node: torch.fx.Node) -> str:
    """Return how a program reaches an input of its graph, such as "self.cache"; empty where it is not known."""
    source: Any = getattr(node, "_dynamo_source", None)
    name: Any = getattr(source, "name", "")
    text = str(name() if callable(name) else name)
    # Dynamo writes L['x'].y for a local variable.
    head, found, tail = text.partition("L['")[2].partition("']")
    return head + tail if found and head.isidentifier() else ""


def _inside(value: Any) -> list[Any]:
    """Return all variables of Dynamo's in one, itself included; what was never looked at stays so."""
    from torch._dynamo.variables.base import VariableTracker

    found: list[Any] = []
    VariableTracker.visit(found.append, value)
    return found


def _input(variable: Any) -> torch.Tensor | None:
    """Return the fake of a variable that is an input of the graph, else None."""
    import torch
    from torch._dynamo.variables.tensor import TensorVariable

    known = variable.unwrap() if hasattr(variable, "unwrap") else variable
    # Not isinstance, which would make Dynamo look into a variable that it has not met.
    if not issubclass(type(known), TensorVariable):
        return None
    node = known.proxy.node
    value = value_of(node)
    return value if node.op == "placeholder" and isinstance(value, torch.Tensor) else None


def _read(frame: Any, name: str) -> int | None:
    """Return the line on which a variable's values may be read behind the place where a frame is, or None."""
    coming = frame.instructions[frame.instruction_pointer :]
    for place, instruction in enumerate(coming):
        names = _loaded(instruction)
        if name not in names or (name == names[-1] and _harmless(coming[place + 1 : place + 3])):
            continue
        return next((line for each in reversed(coming[: place + 1]) if (line := _number(each))), 0)
    return None


def _loaded(instruction: Any) -> tuple[str, ...]:
    """Return the variables that an instruction loads; from Python 3.13 on it may be two, or one behind a stored one."""
    if "LOAD_FAST" not in instruction.opname:
        return ()
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return names[1:] if instruction.opname.startswith("STORE_FAST") else names


def _harmless(coming: Any) -> bool:
    """Tell whether instructions ask the tensor that was just loaded only for what does not depend on its values."""
    first = next(iter(coming), None)
    if first is None:
        return False
    if first.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return first.argval in METADATA
    compared = len(coming) > 1 and first.opname == "LOAD_CONST" and first.argval is None
    return "NONE" in first.opname or (compared and coming[1].opname in ("IS_OP", "COMPARE_OP"))


def _number(instruction: Any) -> int:
    """Return the line of an instruction; 0 where it is not known."""
    return getattr(instruction.positions, "lineno", None) or instruction.starts_line or 0


def _line(frame: Any, number: int) -> str:
    """Return a line of a frame's source as errors show it."""
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    code = linecache.getline(file, number).strip()
    return f"{file}:{number}, in {function}" + (f": {code}" if code else "")
