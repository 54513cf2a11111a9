"""What a user asks of one compilation, read from keywords or from the `options` of torch.compile, and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from vllm_ir import runtime
from vllm_ir.compile import inductor_options
from vllm_ir.compile.passes.base import GraphPass
from vllm_ir.compile.passes.fusions import make, read_fusions
from vllm_ir.compile.passes.order import check_names, ordered
from vllm_ir.config import IrOpPriorityConfig
from vllm_ir.errors import BadCompileOption, UnknownCompileOption
from vllm_ir.errors.base import listed
from vllm_ir.op import IrOp
from vllm_ir.priority import Layer, Wish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm_ir.graphs import BasePass

OWN: Final = ("priority", "passes", "fusions", "lower_to", "exact")
"""Options of this backend; all others are Inductor's."""

INDUCTOR: Final = "inductor"
"""What graphs are lowered to unless something else is asked for."""

GUARD_FILTER: Final = "guard_filter_fn"
"""An option that torch.compile itself takes; it does not reach a backend."""

SOURCE: Final = "compile(priority=...)"
"""Who asks, in errors and explanations."""

LowerTo = Callable[[Any, "Sequence[Any]"], Callable[..., Any]]
"""Takes a graph module with the ops in it and its fake inputs; returns what runs it."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What a user asks of one compilation.

    Attributes:
        priority: provider names in order by op, or for all ops, before every other layer.
        passes: run on the graph with the ops in it.
        fusions: names of built-in passes that run, too.
        lower_to: "inductor", or a function that takes a graph module with the ops in it and its inputs.
        exact: keep the bfloat16 and float16 roundings of the native functions.
        mode: one of torch.compile's modes, for Inductor.
        inductor: Inductor's own options.

    Raises:
        BadCompileOption: a value cannot be what it is.
    """

    priority: IrOpPriorityConfig = field(default_factory=IrOpPriorityConfig)
    passes: tuple[GraphPass, ...] = ()
    fusions: tuple[str, ...] = ()
    lower_to: str | LowerTo = INDUCTOR
    exact: bool = False
    mode: str | None = None
    inductor: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check every value."""
        for each in self.passes:
            if not isinstance(each, GraphPass):
                raise BadCompileOption(option="passes", got=f"a sequence with {each!r}", wanted="GraphPass objects")
        check_names(self.passes, self.fusions)
        if self.lower_to != INDUCTOR:
            _check_compiler(self.lower_to)
        if not isinstance(self.exact, bool):
            raise BadCompileOption(option="exact", got=repr(self.exact), wanted="a bool")
        if self.lower_to != INDUCTOR and (self.mode or self.inductor):
            given = ", ".join([*(["mode"] if self.mode else []), *self.inductor])
            raise BadCompileOption(
                option="lower_to", got=f"given with {given}", wanted="no option of Inductor beside it"
            )

    @classmethod
    def read(cls, options: Mapping[str, Any] | None = None, mode: str | None = None) -> CompileOptions:
        """Return what `torch.compile(..., options=..., mode=...)` was given.

        Raises:
            UnknownCompileOption: neither this backend nor Inductor knows an option.
            UnknownFusion: there is no built-in fusion of a name.
            PassesOfOneName: a fusion in `passes` has the name of another pass.
            BadCompileOption: an option cannot have that value, or the options are no mapping of names.
            MalformedPriority: a list of providers cannot be read.
        """
        check_options(options)
        # A dash stands for an underscore, as torch.compile allows.
        given = {name.replace("-", "_"): value for name, value in (options or {}).items() if name != GUARD_FILTER}
        own = {name: given.pop(name) for name in OWN if name in given}
        for name, value in given.items():
            _check_inductors(name, value)
        if mode is not None and mode not in inductor_options.modes():
            raise BadCompileOption(option="mode", got=repr(mode), wanted=f"one of {listed(inductor_options.modes())}")
        off = inductor_options.without_passes(mode, given)
        if off is not None and own.get("lower_to", INDUCTOR) == INDUCTOR:
            raise BadCompileOption(option=off, got=f"off (mode {mode!r})", wanted="on: no op is lowered without passes")
        return cls(
            priority=read_priority(own.get("priority")),
            passes=_read_passes(own.get("passes", ())),
            fusions=read_fusions(own.get("fusions")),
            lower_to=own.get("lower_to", INDUCTOR),
            exact=own.get("exact", False),
            mode=None if mode == "default" else mode,
            inductor=given,
        )

    def all_passes(self) -> tuple[BasePass, ...]:
        """Return the user's passes and the built-in ones in the order in which they run.

        Raises:
            PassesInCircle: what they declare about each other allows for none.
        """
        return ordered((*self.passes, *make(self.fusions)))

    def wishes(self) -> dict[str, Wish]:
        """Return the priority as a layer of its own, by op.

        Raises:
            UnknownOp: it names one that nobody has registered.
            UnknownProvider, UnusableProvider: what it names for every op can run none.
        """
        state = runtime.current()
        found: dict[str, Wish] = {}
        every = self.priority.for_every_op
        if every:
            state.load()
            state.check_providers(every, SOURCE)
            wish = Wish(Layer.SET_PRIORITY, every, source=SOURCE, for_every_op=True)
            found = {op.name: wish for op in state.registry}
        for name, names in self.priority.items():
            found[state.registry.get(name, SOURCE).name] = Wish(Layer.SET_PRIORITY, names, source=SOURCE)
        return found


def read_priority(value: Any) -> IrOpPriorityConfig:
    """Return provider names by op, from a mapping of lists or texts or from an `IrOpPriorityConfig`.

    Raises:
        BadCompileOption: it is neither.
        MalformedPriority: a list of providers cannot be read.
    """
    if isinstance(value, IrOpPriorityConfig):
        return value
    if not isinstance(value, (Mapping, type(None))):
        wanted = "a mapping of op names to provider names"
        raise BadCompileOption(option="priority", got=repr(value), wanted=wanted)
    lists: dict[str, Any] = {}
    for key, names in (value or {}).items():
        name = key.name if isinstance(key, IrOp) else key
        if not isinstance(name, str):
            raise BadCompileOption(option="priority", got=f"given for {key!r}", wanted="names of ops, or ops")
        if name in lists:
            raise BadCompileOption(option="priority", got=f"given twice for op {name!r}", wanted="one list for each op")
        lists[name] = names
    return IrOpPriorityConfig(lists)


def check_options(options: object) -> None:
    """Raise unless options are a mapping of names, or None.

    Raises:
        BadCompileOption: they are not.
    """
    if not isinstance(options, (Mapping, type(None))):
        raise BadCompileOption(option="options", got=repr(options), wanted="a mapping of names to values")
    for name in options or {}:
        if not isinstance(name, str):
            raise BadCompileOption(option="options", got=f"a mapping with the name {name!r}", wanted="texts as names")


def _check_compiler(lower_to: object) -> None:
    """Raise if something cannot be called with a graph module and its inputs.

    Raises:
        BadCompileOption: it cannot.
    """
    if not callable(lower_to):
        raise BadCompileOption(option="lower_to", got=repr(lower_to), wanted="'inductor' or a function")
    try:
        signature = inspect.signature(lower_to)
    except (TypeError, ValueError):
        return  # a function of an extension need not tell
    try:
        signature.bind(None, None)
    except TypeError as error:
        got = f"{getattr(lower_to, '__name__', lower_to)}{signature}: {error}"
        wanted = "a function that can be called with a graph module and its inputs"
        raise BadCompileOption(option="lower_to", got=got, wanted=wanted) from None


def _check_inductors(name: str, value: Any) -> None:
    """Raise if Inductor has no such option, or takes no such value for it."""
    known = inductor_options.names()
    if name not in known:
        raise UnknownCompileOption(option=name, known=OWN, others=known)
    wanted = inductor_options.mistake(name, value)
    if wanted is not None:
        raise BadCompileOption(option=name, got=repr(value), wanted=wanted)


def _read_passes(value: Any) -> tuple[GraphPass, ...]:
    """Return passes given one by one or in a sequence."""
    if isinstance(value, GraphPass):
        return (value,)
    try:
        return tuple(value)
    except TypeError:
        raise BadCompileOption(option="passes", got=repr(value), wanted="a sequence of GraphPass objects") from None
