"""An op's meaning over its parts: written once, it runs on the parts' natives or on the parts themselves.

Whether it is native, or stands beside one that is written otherwise, is for the declaration to say; who runs a part is
for the part.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from vllm_ir.errors import BadSignature, BadValue
from vllm_ir.generation import make_function
from vllm_ir.memory import lie_apart
from vllm_ir.names import RESERVED_PREFIX as PREFIX
from vllm_ir.signature import REQUIRED, Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_FIRST: Final = "parts"
"""What a meaning calls its first parameter."""

_TAKEN: Final = ("donated", "owned")
"""What `Parts` calls attributes of its own; no part may be called so."""


class Part(Protocol):
    """What is asked of an op that another is made of.

    Attributes:
        name: the op's name.
        declaration: its meaning.
    """

    name: str
    declaration: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op without changing any input."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position, defaults filled in."""


class Parts:
    """What a meaning calls its parts through, each an attribute of the part's own name.

    Args:
        calls: what runs each part, by name; it writes to nothing that it is given.
        owned: what runs them on tensors that the meaning has made itself; by default the same.
        donated: what runs them on activations of the op itself; by default the same.

    Attributes:
        owned: the parts again, for tensors that the meaning has made itself and does not read again.
        donated: the parts again, for activations of the op that the meaning does not read again: they are given away
            where the caller has given them away.
    """

    def __init__(
        self, calls: Mapping[str, Callable[..., Any]], owned: Parts | None = None, donated: Parts | None = None
    ) -> None:
        self.owned = self if owned is None else owned
        self.donated = self if donated is None else donated
        # Plain attributes, since Dynamo follows them where it traces into a meaning.
        vars(self).update(calls)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """Return what runs the part of that name."""


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """An op's meaning over its parts.

    Attributes:
        op: the op's name.
        meaning: takes `Parts`, then the op's arguments; beside its parts it does nothing that mixes rows, so it is as
            batch-invariant as they are.
        parts: the ops that it calls.

    Raises:
        BadValue: a part is called like an attribute of `Parts`.
        BadSignature, KeywordOnlyParameter: the meaning cannot be read, or does not take its parts first.
    """

    op: str
    meaning: Callable[..., Any]
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        """Check that parts can be handed over and called."""
        who = f"op {self.op!r}"
        for part in self.parts:
            if part.name in _TAKEN:
                raise BadValue(who=who, field="parts", got=repr(part.name), wanted="ops of other names")
        if next(iter(Signature.read(self.meaning, who).names), None) != _FIRST:
            raise BadSignature(
                who=who,
                problem="it has parts, and its function does not take them",
                fix=f"Let the first parameter be '{_FIRST}'; it is no parameter of the op.",
            )

    def natives(self) -> Parts:
        """Return the parts' native functions."""
        return Parts({part.name: part.declaration.native for part in self.parts})

    def functional(self) -> Parts:
        """Return the parts as calls that write to nothing, for a graph, where copies are nobody's business yet."""
        return Parts({part.name: part for part in self.parts})

    def donating(self, activations: Sequence[int]) -> Callable[..., Parts]:
        """Return what chooses the parts for a call whose activations are donated, as `dispatching` has them.

        They are given away only where nothing else lies in their memory: what one part has written, the meaning may
        read behind it, a scale out of the residual, say.

        Args:
            activations: their positions among the op's parameters.
        """
        kept, giving = (self.dispatching(donated=donated) for donated in (False, True))

        def choose(*args: Any) -> Parts:
            """Return the parts for one call."""
            return giving if lie_apart(args, activations) else kept

        return choose

    def dispatching(self, *, donated: bool) -> Parts:
        """Return the parts as a program calls them, each of which selects for itself.

        Args:
            donated: whether the caller has donated the op's activations.
        """
        giving = Parts({part.name: getattr(part, "maybe_inplace", part) for part in self.parts})
        calls: dict[str, Callable[..., Any]] = {part.name: part for part in self.parts}
        return Parts(calls, owned=giving, donated=giving if donated else None)

    def calls(self, args: Sequence[Any]) -> list[tuple[str, tuple[Any, ...]]]:
        """Return which parts a call of the op calls, by name, each with its arguments by position; natives run then.

        Args:
            args: all arguments by position; fake tensors, unless results are to be worked out.
        """
        found: list[tuple[str, tuple[Any, ...]]] = []

        def recorded(part: Part) -> Callable[..., Any]:
            """Return the part's native function, which notes down what it is called with."""

            def run(*given: Any, **named: Any) -> Any:
                """Note down a call and run it."""
                bound = part.bind(given, named)
                found.append((part.name, bound))
                return part.declaration.native(*bound)

            return run

        self.meaning(Parts({part.name: recorded(part) for part in self.parts}), *args)
        return found

    def over(self, parts: Parts | Callable[..., Parts], name: str) -> Callable[..., Any]:
        """Return the meaning as a function of the op's own parameters.

        Args:
            parts: what it calls, or what chooses that by the arguments of a call.
            name: what tracebacks call the function.
        """
        _, *parameters = Signature.read(self.meaning, f"op {self.op!r}").parameters
        declared = ", ".join(
            p.name if p.default is REQUIRED else f"{p.name}={PREFIX}default_{p.name}" for p in parameters
        )
        given = ", ".join(p.name for p in parameters)
        chosen = f"{PREFIX}parts" if isinstance(parts, Parts) else f"{PREFIX}parts({given})"
        source = f"def {name}({declared}):\n    return {PREFIX}meaning({chosen}, {given})"
        scope: dict[str, Any] = {f"{PREFIX}default_{p.name}": p.default for p in parameters}
        made = make_function(source, name, {**scope, f"{PREFIX}meaning": self.meaning, f"{PREFIX}parts": parts})
        made.__module__, made.__qualname__ = self.meaning.__module__, name
        made.__doc__ = self.meaning.__doc__
        # For whoever asks for the source of a native function.
        vars(made)["__wrapped__"] = self.meaning
        vars(made)["__signature__"] = self._signature()
        return made

    def _signature(self) -> inspect.Signature:
        """Return the signature of the op, types looked up, since what is made has no module to find them in."""
        home = getattr(inspect.unwrap(self.meaning), "__globals__", {})
        signature = inspect.signature(self.meaning)
        _, *parameters = signature.parameters.values()
        return signature.replace(
            parameters=[each.replace(annotation=_found(each.annotation, home)) for each in parameters],
            return_annotation=_found(signature.return_annotation, home),
        )


def _found(annotation: Any, home: dict[str, Any]) -> Any:
    """Return what an annotation stands for in a module; the text itself where it is not found, which is told later."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, home)  # noqa: S307 - the text is a program's own annotation
    except (NameError, AttributeError, TypeError):
        return annotation
