"""`vllm_ir.compile`: a model that runs, at every call, what was compiled for the priorities of whoever calls it.

Priorities are read outside Dynamo, whose guards cannot see a context; each selection gets a compiled function of its
own, made when it is first wanted.
"""

from __future__ import annotations

import copy
import functools
import inspect
import reprlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from vllm_ir import runtime
from vllm_ir.compile import dynamo, inductor_options
from vllm_ir.compile.backend import compile_graph, take_plan
from vllm_ir.compile.options import GUARD_FILTER, INDUCTOR, CompileOptions, check_options
from vllm_ir.errors import BadCompileOption, IrError, UnknownCompileArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from vllm_ir.compile.options import LowerTo
    from vllm_ir.compile.passes.base import GraphPass
    from vllm_ir.compile.plan import Plan
    from vllm_ir.config import IrOpPriorityConfig
    from vllm_ir.priority import Wish

Model = TypeVar("Model", bound="Callable[..., Any]")

CONTEXTS: Final = 64
"""For how many contexts between two changes a compiled function remembers which selection is theirs."""


@overload
def compile_model(
    model: Model,
    *,
    priority: Mapping[str, str | Sequence[str]] | IrOpPriorityConfig | None = None,
    passes: Sequence[GraphPass] = (),
    fusions: str | Sequence[str] = (),
    lower_to: str | LowerTo = INDUCTOR,
    exact: bool = False,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Model: ...
@overload
def compile_model(
    model: None = None,
    *,
    priority: Mapping[str, str | Sequence[str]] | IrOpPriorityConfig | None = None,
    passes: Sequence[GraphPass] = (),
    fusions: str | Sequence[str] = (),
    lower_to: str | LowerTo = INDUCTOR,
    exact: bool = False,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[[Model], Model]: ...


def compile_model(
    model: Any = None,
    *,
    priority: Mapping[str, str | Sequence[str]] | IrOpPriorityConfig | None = None,
    passes: Sequence[GraphPass] = (),
    fusions: str | Sequence[str] = (),
    lower_to: str | LowerTo = INDUCTOR,
    exact: bool = False,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a model or a function; each call runs what the priorities of its own context select.

    Args:
        model: a module or a function; None makes a decorator.
        priority: provider names in order by op, before every other layer.
        passes: run in this order on the graph with the ops in it.
        fusions: names of built-in passes that run, too, or "all"; their order follows what they declare.
        lower_to: "inductor", or a function that takes a graph module with the ops in it and its fake inputs, and
            returns what runs it.
        exact: keep the bfloat16 and float16 roundings of the native functions, as eager does; slower.
        dynamic: as in torch.compile: True compiles for changing sizes at once, None when one has changed.
        fullgraph: raise where the model would be compiled in several parts.
        mode: one of torch.compile's modes, for Inductor.
        options: options of Inductor.

    Returns:
        for a module, a module that shares everything with it but runs compiled; for a function, a function.

    Raises:
        ConfigurationError: an option or a priority cannot be; a name of a provider is looked up at the first call.
        UsedAfterDonation: at a call: a tensor is read after it was donated.
        BatchGuard: at a call: a predicate asks for a size that changes from call to call.
        SelectionError: at a call: nothing may run an op, or what a user named cannot.
    """
    check_options(options)
    for name, value, kinds, wanted in (
        ("dynamic", dynamic, (bool, type(None)), "True, False or None"),
        ("fullgraph", fullgraph, (bool,), "a bool"),
    ):
        if not isinstance(value, kinds):
            raise BadCompileOption(option=name, got=repr(value), wanted=wanted)
    given = dict(options or {})
    own = {"priority": priority, "passes": passes, "fusions": fusions, "lower_to": lower_to, "exact": exact}
    twice = sorted(own.keys() & given.keys())
    if twice:
        raise BadCompileOption(option=twice[0], got="among the options", wanted="a keyword of its own")
    keywords: dict[str, Any] = {"dynamic": dynamic, "fullgraph": fullgraph}
    if GUARD_FILTER in given:
        keywords["options"] = {GUARD_FILTER: given[GUARD_FILTER]}
    recipe = Recipe(CompileOptions.read({**given, **own}, mode), keywords)
    return recipe.apply if model is None else recipe.apply(model)


def check_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise if `compile_model` cannot be called so, with the nearest name.

    Raises:
        UnknownCompileArgument: it has no argument of a name, or takes none by position but the model.
    """
    known = tuple(name for name in inspect.signature(compile_model).parameters if name != "model")
    unknown = [name for name in kwargs if name != "model" and name not in known]
    if unknown:
        name = unknown[0]
        raise UnknownCompileArgument(argument=name, known=known, option=name in inductor_options.names())
    if len(args) > 1:
        raise UnknownCompileArgument(argument=reprlib.repr(args[1]), known=known, positional=True)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is compiled.

    Attributes:
        options: what the graphs are compiled by.
        keywords: for torch.compile.
    """

    options: CompileOptions
    keywords: Mapping[str, Any]

    def apply(self, model: Any) -> Any:
        """Return a compiled module or function.

        Raises:
            BadCompileOption: it is neither.
        """
        import torch

        if isinstance(model, torch.nn.Module):
            return dynamo.compiled_module(model, self)
        if isinstance(model, type) or not callable(model):
            raise BadCompileOption(option="model", got=repr(model), wanted="a module or a function")
        return self(model)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled function; what a call of a module runs is one, too."""
        variants = Variants(function, self)
        changes, find = runtime.current().changes, variants.find

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            """Run what is compiled for the current context."""
            epoch, compiled = variants.latest
            try:
                if epoch != changes.epoch or changes.scopes:
                    compiled = find()
                return compiled(*args, **kwargs)
            except Exception as error:
                own = find_own(error)
                if own is None:
                    raise
                # What Dynamo made of it says the same again, between its own frames; it stays the context.
                raise own from own.__cause__

        dynamo.pretend_to_be_compiled(run, function)
        return run


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """What compiles the graphs of one selection.

    Attributes:
        options: what they are compiled by.
        plan: the selection.
    """

    options: CompileOptions
    plan: Plan

    @property
    def __name__(self) -> str:
        """How Dynamo's errors call it."""
        return "vllm_ir"

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile one graph."""
        return compile_graph(module, inputs, self.options, self.plan)


class Known:
    """Which compiled function belongs to what the scopes of a context want, between two changes.

    Looked up by value, since a program may open a scope around each of its calls.

    Args:
        epoch: of the process.

    Attributes:
        epoch: the same.
        compiled: by what the scopes want.
    """

    __slots__ = ("_readers", "compiled", "epoch")

    def __init__(self, epoch: int) -> None:
        state = runtime.current()
        self.epoch = epoch
        self.compiled: dict[tuple[tuple[Wish, ...], ...], Callable[..., Any]] = {}
        self._readers = [state.board(op).scope.get for op in state.registry]

    def wishes(self) -> tuple[tuple[Wish, ...], ...]:
        """Return what the scopes of the current context want, op by op."""
        return tuple([() if scope is None else scope.wishes for scope in [read() for read in self._readers]])


class Variants:
    """The compiled functions of one function, one for each selection.

    Args:
        function: what is compiled.
        recipe: how.

    Attributes:
        latest: what runs where no scope is open, and the epoch of the process that this was found in.
    """

    __slots__ = ("_by_digest", "_function", "_known", "_lock", "_recipe", "latest")

    def __init__(self, function: Callable[..., Any], recipe: Recipe) -> None:
        self._function = function
        self._recipe = recipe
        self._lock = threading.Lock()
        self._by_digest: dict[str, Callable[..., Any]] = {}
        self._known = Known(-1)
        self.latest: tuple[int, Callable[..., Any]] = (-1, function)

    def find(self) -> Callable[..., Any]:
        """Return the compiled function for the current context."""
        # The epoch is read first: what changes later is then seen by the next call.
        epoch, known = runtime.current().changes.epoch, self._known
        if known.epoch != epoch or len(known.compiled) >= CONTEXTS:
            known = self._known = Known(epoch)
        wishes = known.wishes()
        compiled = known.compiled.get(wishes)
        if compiled is None:
            compiled = known.compiled[wishes] = self._make(take_plan(self._recipe.options))
        if not any(wishes):
            self.latest = (epoch, compiled)
        return compiled

    def _make(self, plan: Plan) -> Callable[..., Any]:
        """Return the compiled function for a selection."""
        with self._lock:
            if plan.digest not in self._by_digest:
                backend = Backend(self._recipe.options, plan)
                self._by_digest[plan.digest] = dynamo.compile_apart(self._function, backend, self._recipe.keywords)
            return self._by_digest[plan.digest]


def find_own(error: BaseException) -> IrError | None:
    """Return a copy of the error of ours that Dynamo has wrapped, or None.

    A copy, because what was raised first shows the place in our code. What caused that, such as an exception in a
    user's pass, causes the copy.
    """
    if isinstance(error, IrError) or not dynamo.is_dynamos(error):
        return None
    seen: list[BaseException | None] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        if isinstance(found, IrError):
            own = copy.copy(found)
            own.__cause__ = found.__cause__
            return own
        seen.append(found)
        found = getattr(found, "inner_exception", None) or found.__cause__ or found.__context__
    return None
