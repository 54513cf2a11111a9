"""A fusion, declared by two functions of the same parameters: what is looked for, and what is put in its place."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_ir.compile.passes.base import GraphPass
from vllm_ir.compile.passes.conditions import asked, said, types
from vllm_ir.compile.passes.fusing import fuse
from vllm_ir.compile.passes.reading import Reader
from vllm_ir.compile.passes.skeleton import draw, joined, returns_views, writer
from vllm_ir.compile.passes.surroundings import Surroundings
from vllm_ir.compile.torch_fakes import fake_mode
from vllm_ir.errors import BadFusion
from vllm_ir.errors.base import did_you_mean, listed
from vllm_ir.fingerprint import source_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from vllm_ir.compile.passes.skeleton import Skeleton
    from vllm_ir.compile.passes.surroundings import Outcome


@dataclass(frozen=True, slots=True)
class Form:
    """A fusion's pattern, drawn once.

    Attributes:
        fusion: whose it is.
        names: of its parameters.
        example: what it was drawn with.
        skeleton: the pattern.
        anchor: its last call of an op.
    """

    fusion: Fusion
    names: tuple[str, ...]
    example: tuple[Any, ...]
    skeleton: Skeleton
    anchor: fx.Node


@dataclass(frozen=True, kw_only=True, eq=False)
class Fusion(GraphPass):
    """Replaces one pattern by another; a value that is checked when it is made, and a graph pass like any other.

    Both functions are written with IR ops and torch's own functions, and are traced on fake tensors. A match is a
    place where the graph is what the pattern would be on what stands there: dtypes, shapes and every plain argument
    included. Besides, tensors that have one dtype in the example have one in the graph, what is given is contiguous, no
    value in between has another reader, nothing is written in between, the graph is for inference, and a provider that
    a user named for a part is not passed over.

    Attributes:
        name: how logs and reports call it.
        pattern: what is looked for; its last op is what a search begins with.
        replacement: what is put there; takes the same parameters and returns as many results.
        example: returns arguments by position; what the pattern is drawn with, on fake tensors, once.
        free: parameters that take whatever stands in the graph. A plain one is bound where an op has an argument of
            that name; a tensor that is free may be None.
        strided: tensors that need not be contiguous.
        when: more conditions: each is called with the arguments by position, fake tensors among them, and returns a
            bool or Unsupported(sentence).
        before: names of passes that it goes before.
        after: names of passes that it goes behind.

    Raises:
        BadFusion: a part cannot be what it is.
    """

    name: str = ""
    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    example: Callable[[], Sequence[Any]]
    free: tuple[str, ...] = ()
    strided: tuple[str, ...] = ()
    when: tuple[Callable[..., Any], ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    _forms: dict[object, Form] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check every part: each for itself, then the functions by drawing them on the example."""
        if not str(self.name).isidentifier():
            raise BadFusion(name=repr(self.name), problem="it has no name of its own", fix="Give it one: name='mine'.")
        for part in ("pattern", "replacement", "example"):
            if not callable(getattr(self, part)):
                problem = f"{part} is {getattr(self, part)!r}, wanted a function"
                raise BadFusion(name=self.name, problem=problem, fix="Give a function.")
        names, others = _parameters(self.pattern), _parameters(self.replacement)
        if names != others:
            problem = f"the pattern takes ({', '.join(names)}), the replacement ({', '.join(others)})"
            raise BadFusion(name=self.name, problem=problem, fix="Give both the same parameters in the same order.")
        for part in ("free", "strided", "when", "before", "after"):
            value = getattr(self, part)
            if isinstance(value, str) or not isinstance(value, (tuple, list)):
                problem = f"{part} is {value!r}, wanted a tuple"
                raise BadFusion(name=self.name, problem=problem, fix=f"Write {part}=({value!r},).")
            object.__setattr__(self, part, tuple(value))
        for part in ("free", "strided"):
            unknown = next((name for name in getattr(self, part) if name not in names), None)
            if unknown is not None:
                problem = f"{part} names {unknown!r}, and its parameters are {listed(names)}"
                fix = f"Name a parameter.{did_you_mean(str(unknown), names)}"
                raise BadFusion(name=self.name, problem=problem, fix=fix)
        _check_itself(self)
        for predicate in self.when:
            _check_condition(self.name, predicate, names)
        reader = Reader(Surroundings().ops())
        self._check_replacement(self._draw({}, reader), reader)

    def apply(self, graph: fx.Graph) -> int:
        """Replace the pattern wherever it stands, as in a graph for inference, and return how often."""
        return self.transform(graph, Surroundings()).changes

    def transform(self, graph: fx.Graph, around: Surroundings) -> Outcome:
        """Replace the pattern wherever it stands, and tell where it nearly did."""
        return fuse(self.name, graph, (self,), around)

    def key(self) -> str:
        """Return what tells compiled graphs with this fusion from others: what its functions do, and its settings."""
        functions = (self.pattern, self.replacement, self.example, *self.when)
        settings = repr((self.free, self.strided, self.before, self.after))
        text = "\n".join([self.name, source_digest(type(self)), *map(source_digest, functions), settings])
        return hashlib.sha256(text.encode()).hexdigest()

    def form(self, table: Mapping[Any, Callable[..., Any]], reader: Reader) -> Form:
        """Return the pattern as a graph, drawn when it is first wanted.

        Args:
            table: what the compiler takes apart while it traces.
            reader: reads nodes.

        Raises:
            BadFusion: it cannot be traced, calls no op, or returns what it was given.
        """
        key = frozenset(table)
        if key not in self._forms:
            self._forms[key] = self._draw(table, reader)
        return self._forms[key]

    def _draw(self, table: Mapping[Any, Callable[..., Any]], reader: Reader) -> Form:
        """Draw the pattern on its example."""
        names = _parameters(self.pattern)
        try:
            with fake_mode():
                example = tuple(self.example())
            skeleton = draw(self.pattern, example, table, reader)
        except Exception as error:
            problem = f"its pattern cannot be traced on its example: {said(error)}"
            raise BadFusion(
                name=self.name,
                problem=problem,
                fix="Let example() return what the pattern takes, and the pattern tensors.",
            ) from error
        if len(example) != len(names):
            problem = f"its pattern takes ({', '.join(names)}), and example() returns {len(example)} of these"
            fix = "Return one value for each, by position, also for one that has a default."
            raise BadFusion(name=self.name, problem=problem, fix=fix)
        self._check_writes("pattern", skeleton, reader)
        anchor = skeleton.anchor(reader)
        if anchor is None:
            raise BadFusion(name=self.name, problem="its pattern calls no op", fix="Write it with vllm_ir.ops.")
        if returns_views(skeleton):
            problem = "its pattern returns a view of what it is given"
            raise BadFusion(name=self.name, problem=problem, fix="Return what an operation makes.")
        unread = next((names[place] for node, place in skeleton.parameters.items() if not node.users), None)
        if unread is not None:
            problem = f"its pattern does not read {unread!r}, so nothing in a graph can stand for it"
            raise BadFusion(name=self.name, problem=problem, fix="Read it, or leave it out of both functions.")
        arguments = {
            name for node in skeleton.calls if (call := reader.read(node)) is not None for name in call.arguments
        }
        plain = [n for n, value in zip(names, example, strict=True) if n in self.free and not hasattr(value, "stride")]
        unbound = next((name for name in plain if name not in arguments), None)
        if unbound is not None:
            problem = f"{unbound!r} is free, and no call of its pattern has an argument of that name"
            fix = f"Call it as the op does.{did_you_mean(unbound, sorted(arguments))}"
            raise BadFusion(name=self.name, problem=problem, fix=fix)
        return Form(self, names, example, skeleton, anchor)

    def _check_writes(self, which: str, skeleton: Skeleton, reader: Reader) -> None:
        """Refuse a function that writes: it would match nothing, or leave a graph that is not functional."""
        found = writer(skeleton, reader)
        if found is not None:
            problem = (
                f"its {which} calls {found[0]}, which writes to a tensor, and graphs are functional when fusions run"
            )
            raise BadFusion(name=self.name, problem=problem, fix=found[1])

    def _check_replacement(self, form: Form, reader: Reader) -> None:
        """Draw the replacement on the example, and hold its results against the pattern's.

        Where a condition refuses the example, the replacement need not work on it; its number of results still counts.
        """
        refused = asked(self.name, self.when, form.example)
        try:
            drawn = draw(self.replacement, form.example, {}, reader)
        except Exception as error:
            if refused is not None:
                return
            problem = f"its replacement cannot be traced on its example: {said(error)}"
            fix = "Let it take what the pattern takes, and example() return what both take."
            raise BadFusion(name=self.name, problem=problem, fix=fix) from error
        wanted, found = types(form.skeleton), types(drawn)
        if len(wanted) != len(found) or (refused is None and wanted != found):
            problem = f"its replacement returns ({', '.join(found)}) on the example, wanted ({', '.join(wanted)})"
            raise BadFusion(
                name=self.name, problem=problem, fix="Return as many results as the pattern, each its dtype."
            )
        self._check_writes("replacement", drawn, reader)
        shared = joined(drawn, form.skeleton) if refused is None else None
        if shared is not None:
            raise BadFusion(name=self.name, problem=f"its replacement {shared}", fix="Return a clone().")


@dataclass(frozen=True, kw_only=True, eq=False)
class FusionGroup(GraphPass):
    """Fusions under one name, tried in their order in one sweep; a near miss is told only where none of them fits.

    Attributes:
        name: how logs and reports call it.
        members: the fusions.
        before: names of passes that it goes before.
        after: names of passes that it goes behind.

    Raises:
        BadFusion: it is to go before or behind itself.
    """

    name: str = ""
    members: tuple[Fusion, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what it declares about others."""
        _check_itself(self)

    def apply(self, graph: fx.Graph) -> int:
        """Replace the patterns wherever they stand, as in a graph for inference, and return how often."""
        return self.transform(graph, Surroundings()).changes

    def transform(self, graph: fx.Graph, around: Surroundings) -> Outcome:
        """Replace the patterns wherever they stand, and tell where they nearly did."""
        return fuse(self.name, graph, self.members, around)

    def key(self) -> str:
        """Return what tells compiled graphs with these fusions from others."""
        text = "\n".join([self.name, source_digest(type(self)), *(each.key() for each in self.members)])
        return hashlib.sha256(text.encode()).hexdigest()


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters."""
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        problem = f"{function!r} has no signature that can be read"
        raise BadFusion(name=repr(function), problem=problem, fix="Give a Python function.") from error


def _check_itself(fusion: Fusion | FusionGroup) -> None:
    """Refuse one that is to go before or behind itself."""
    part = next((part for part in ("before", "after") if fusion.name in getattr(fusion, part)), None)
    if part is not None:
        problem = f"{part} names {fusion.name!r}, which it is itself"
        raise BadFusion(name=fusion.name, problem=problem, fix="Name other passes.")


def _check_condition(name: str, predicate: object, names: Sequence[str]) -> None:
    """Refuse a condition that cannot be called with the pattern's arguments by position."""
    if not callable(predicate):
        problem = f"when has {predicate!r} in it, wanted functions"
        raise BadFusion(name=name, problem=problem, fix="Give functions that return a bool.")
    try:
        signature = inspect.signature(predicate)
    except (TypeError, ValueError):
        return  # one written in C; whether it can be called shows when it is
    try:
        signature.bind(*names)
    except TypeError:
        called = getattr(predicate, "__name__", repr(predicate))
        problem = f"its condition {called} takes {signature}, and is called with ({', '.join(names)}) by position"
        raise BadFusion(name=name, problem=problem, fix="Let it take what the pattern takes.") from None
