"""`vllm_ir.compile`: one compiled function for each selection, found outside Dynamo at every call."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import pickle
import threading
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo.testing
import vllm_ir
from torch import Tensor
from vllm_ir import ops
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.compile.passes import GraphPass
from vllm_ir.errors import (
    BadCompileOption,
    BrokenPass,
    IrError,
    UnknownCompileArgument,
    UnknownOp,
    UnknownProvider,
    UsedAfterDonation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
X, WEIGHT = torch.linspace(-1, 1, 4 * 8).reshape(4, 8), torch.linspace(0.5, 1.5, 8)
ISOLATES = "isolate_recompiles" in inspect.signature(torch.compile).parameters


class Lowerer:
    """A compiler that lowers each graph and runs it as it is.

    Attributes:
        count: how many graphs it was given.
    """

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Compile one graph."""
        self.count += 1
        lower_graph(module)
        return module


def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
    """Compile one graph; unlike a `Lowerer` it can be pickled."""
    lower_graph(module)
    return module


def normalize(x: Tensor) -> Tensor:
    """Call an op of one result."""
    return rms(x, WEIGHT, 1e-5) + 0  # type: ignore[no-any-return]


def nested(x: Tensor) -> Tensor:
    """Call an op where Dynamo comes to it only behind a break."""
    torch._dynamo.graph_break()
    return rms(x, WEIGHT, 1e-5) * 1  # type: ignore[no-any-return]


def broken(x: Tensor) -> Tensor:
    """Be compiled in several parts, one of them a function of its own."""
    return nested(x * 1) + 0


class Net(torch.nn.Module):
    """A module with a parameter, a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(WEIGHT.clone())
        self.linear = torch.nn.Linear(8, 8)
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(8))
        self.tag = "a"

    def forward(self, x: Tensor) -> Tensor:
        """Call an op of one result."""
        return self.linear(rms(x, self.weight, 1e-5) * self.scale)  # type: ignore[no-any-return]


@pytest.fixture
def add(state: Runtime) -> Callable[[str, float], None]:
    """Return a function that registers a provider of rms_norm whose results are native's times a factor."""
    assert state is not None
    native = rms.declaration.native

    def register(name: str, factor: float) -> None:
        """Register a provider that can be traced."""

        @functools.wraps(native)
        def scaled(*args: Any, **kwargs: Any) -> Any:
            """Run native and multiply."""
            return native(*args, **kwargs) * factor

        rms.register_impl(name)(scaled)

    return register


def factor(result: Tensor) -> float:
    """Return what the provider that ran multiplies by."""
    return round(float((result / rms.declaration.native(X, WEIGHT, 1e-5)).mean()), 3)


def test_every_selection_is_compiled_once(add: Any) -> None:
    """A, B, A compile twice; scopes choose among what is compiled, and what was said before holds behind them."""
    add("a", 2.0)
    add("b", 3.0)
    compiler = Lowerer()
    compiled: Any = vllm_ir.compile(normalize, lower_to=compiler, fullgraph=True)
    seen = []
    for name in ("native", "a", "native", "a"):
        rms.set_default(name)
        seen += [(factor(compiled(X)), compiler.count) for _ in range(2)]
    assert seen == [(1, 1), (1, 1), (2, 2), (2, 2), (1, 2), (1, 2), (2, 2), (2, 2)]
    with rms.set_priority("b"):
        assert (factor(compiled(X)), compiler.count) == (3, 3)
        with rms.set_priority("native"):
            assert factor(compiled(X)) == 1
        assert factor(compiled(X)) == 3
    assert factor(compiled(X)) == 2


@pytest.mark.parametrize(
    "function",
    [
        normalize,
        pytest.param(
            broken, marks=pytest.mark.skipif(not ISOLATES, reason="a torch that cannot keep recompilations apart")
        ),
    ],
)
def test_twenty_selections_stay_compiled(add: Any, function: Callable[[Tensor], Tensor]) -> None:
    """Dynamo's limit on recompilations is for one selection, also of functions behind a graph break."""
    compiler = Lowerer()
    compiled: Any = vllm_ir.compile(function, lower_to=compiler)
    counts = []
    for i in range(20):
        add(f"p{i}", 2.0 + i)
        rms.set_default(f"p{i}")
        assert factor(compiled(X)) == 2 + i
        counts.append(compiler.count)
    assert counts == [counts[0] * (i + 1) for i in range(20)]


def test_an_implementation_registered_afterwards_is_compiled_in(add: Any) -> None:
    """It takes the place that a priority gave it, and what was compiled without it is not used."""
    add("a", 2.0)
    compiled: Any = vllm_ir.compile(normalize, lower_to=Lowerer(), priority={"rms_norm": "a"})
    assert factor(compiled(X)) == 2
    add("b", 3.0)
    rms.set_default("b")
    assert factor(compiled(X)) == 2
    assert factor(vllm_ir.compile(normalize, lower_to=Lowerer())(X)) == 3


def test_nothing_is_read_anew_while_nothing_changes(add: Any) -> None:
    """A plan is taken when something has changed, and once for each scope that differs."""
    add("a", 2.0)

    class Asked(GraphPass):
        """Counts how often a plan asks for its key."""

        count = 0

        def apply(self, graph: torch.fx.Graph) -> int:
            """Leave the graph as it is."""
            assert graph is not None
            return 0

        def key(self) -> str:
            """Count."""
            Asked.count += 1
            return "asked"

    compiled: Any = vllm_ir.compile(normalize, lower_to=Lowerer(), passes=[Asked()])
    counts = []
    for _ in range(3):
        compiled(X)
        counts.append(Asked.count)
    for _ in range(3):
        with rms.set_priority("a"):
            compiled(X)
        counts.append(Asked.count)
    rms.set_default("a")
    compiled(X)
    assert [*counts, Asked.count] == [1, 1, 1, 2, 2, 2, 3]


def test_threads_hold_scopes_of_their_own(add: Any) -> None:
    """Two threads with different scopes share a compiled function, and each gets its own kernel every time."""
    add("a", 2.0)
    add("b", 3.0)
    compiled: Any = vllm_ir.compile(normalize, lower_to=Lowerer(), fullgraph=True)
    barrier = threading.Barrier(3, timeout=60)
    seen: dict[str, list[float]] = {"a": [], "b": []}

    def serve(name: str) -> None:
        """Call in turn with the other thread."""
        with rms.set_priority(name):
            for _ in range(5):
                barrier.wait()
                seen[name].append(factor(compiled(X)))

    threads = [threading.Thread(target=contextvars.Context().run, args=(serve, name)) for name in seen]
    for thread in threads:
        thread.start()
    for _ in range(5):
        barrier.wait()
        assert factor(compiled(X)) == 1
    for thread in threads:
        thread.join(60)
    assert seen == {"a": [2.0] * 5, "b": [3.0] * 5}


def test_tasks_hold_scopes_of_their_own(add: Any) -> None:
    """Two asyncio tasks with different scopes take turns in one thread, and each gets its own kernel every time."""
    add("a", 2.0)
    add("b", 3.0)
    compiled: Any = vllm_ir.compile(normalize, lower_to=Lowerer(), fullgraph=True)

    async def serve(name: str) -> list[float]:
        """Call, and let the other task do the same."""
        found = []
        with rms.set_priority(name):
            for _ in range(5):
                found.append(factor(compiled(X)))
                await asyncio.sleep(0)
        return found

    async def both() -> list[list[float]]:
        """Run two tasks."""
        return list(await asyncio.gather(serve("a"), serve("b")))

    assert asyncio.run(both()) == [[2.0] * 5, [3.0] * 5]
    assert factor(compiled(X)) == 1


def test_a_compiled_module_is_what_torch_makes_of_one() -> None:
    """Its state, parameters, attributes and modes are the module's, under the names that torch gives them."""
    net: Any = Net()
    mine: Any = vllm_ir.compile(net, lower_to=lower)
    theirs: Any = torch.compile(net, backend="eager")
    assert type(mine) is type(theirs)
    assert issubclass(type(mine), torch.nn.Module)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    assert [name for name, _ in mine.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert repr(mine) == repr(theirs)
    assert set(dir(mine)) == set(dir(theirs))
    mine.eval()
    mine.tag = "b"
    assert (net.training, net.tag) == (False, "b")
    assert mine.get_compiler_config() is theirs.get_compiler_config()
    torch.testing.assert_close(mine(X), net(X))
    mine.load_state_dict({**mine.state_dict(), "_orig_mod.scale": torch.zeros(8)})
    torch.testing.assert_close(mine(X), net(X))
    assert torch.equal(net.scale, torch.zeros(8))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])  # noqa: S301
def test_a_copy_of_a_compiled_module_is_compiled(way: Callable[[Any], Any]) -> None:
    """Copies and pickles are modules of their own that compile what they hold."""
    net = Net()
    compiled: Any = vllm_ir.compile(net, lower_to=lower, fullgraph=True)
    compiled(X)
    other = way(compiled)
    with torch.no_grad():
        other.weight.mul_(2)
    torch.testing.assert_close(other(X), other._orig_mod(X))
    assert not torch.allclose(other(X), compiled(X))


def test_a_module_has_its_hooks_run() -> None:
    """Hooks run, as they do around what torch compiles."""
    net = Net()
    compiled: Any = vllm_ir.compile(net, lower_to=lower)
    net.register_forward_hook(lambda _module, _args, result: result * 0)
    assert not compiled(X).any()


def test_gradients_come_through(add: Any) -> None:
    """A compiled module trains; the gradients are native's."""
    add("a", 1.0)
    net = Net()
    compiled: Any = vllm_ir.compile(net, lower_to=lower, priority={"rms_norm": ["a"]})
    net(X).sum().backward()
    wanted = [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    compiled(X).sum().backward()
    got = [parameter.grad for parameter in net.parameters()]
    assert len(wanted) == len(got)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_it_decorates(add: Any) -> None:
    """With arguments and without; the result looks like the function."""
    add("a", 2.0)

    @vllm_ir.compile(lower_to=lower, priority={"rms_norm": "a"}, dynamic=True)
    def scaled(x: Tensor) -> Tensor:
        """Be documented."""
        return rms(x, WEIGHT, 1e-5)  # type: ignore[no-any-return]

    @vllm_ir.compile
    def plain(x: Tensor) -> Tensor:
        """Be documented, too."""
        return rms(x, WEIGHT, 1e-5)  # type: ignore[no-any-return]

    assert factor(scaled(X)) == 2
    assert (scaled.__name__, scaled.__doc__, plain.__name__) == ("scaled", "Be documented.", "plain")


def test_dynamic_and_fullgraph_are_torchs(add: Any) -> None:
    """One dynamic graph serves all sizes, and a break raises where the whole was asked for."""
    add("a", 2.0)
    compiler = Lowerer()
    compiled: Any = vllm_ir.compile(normalize, lower_to=compiler, dynamic=True, fullgraph=True)
    for tokens in (4, 3, 2):
        torch.testing.assert_close(compiled(X[:tokens]), normalize(X[:tokens]))
    assert compiler.count == 1
    with pytest.raises(torch._dynamo.exc.Unsupported):
        vllm_ir.compile(broken, lower_to=compiler, fullgraph=True)(X)


def test_a_filter_of_guards_reaches_torch() -> None:
    """An option of torch.compile itself is handed to it, and the caller's options stay as they are."""
    compiler, seen = Lowerer(), []

    def keep(guards: Any) -> list[bool]:
        """Drop every guard."""
        seen.append(len(guards))
        return [False] * len(guards)

    options = {"guard_filter_fn": keep}
    compiled: Any = vllm_ir.compile(normalize, lower_to=compiler, options=options)
    compiled(X)
    assert seen
    assert options == {"guard_filter_fn": keep}


def test_whoever_compiles_around_it_sees_through_it() -> None:
    """A compiled function that is called, or compiled again, is the function itself to another compilation."""
    compiled: Any = vllm_ir.compile(normalize, lower_to=lower)
    net: Any = vllm_ir.compile(Net(), lower_to=lower)

    def outer(x: Tensor) -> Tensor:
        """Call both."""
        return net(compiled(x) + 1)  # type: ignore[no-any-return]

    recorder = torch._dynamo.testing.EagerAndRecordGraphs()
    again: Any = torch.compile(outer, backend=recorder, fullgraph=True)
    torch.testing.assert_close(again(X), outer(X))
    (graph,) = recorder.graphs
    assert str(graph.graph).count("vllm_ir.rms_norm") == 2
    counter = torch._dynamo.testing.CompileCounter()
    again = torch.compile(compiled, backend=counter)
    torch.testing.assert_close(again(X), normalize(X))
    assert counter.frame_count == 1


def test_an_error_of_ours_is_raised_as_it_is() -> None:
    """A call raises the error itself, and its traceback says the sentence once; Dynamo's story is its context."""

    def wrong(x: Tensor, r: Tensor) -> Tensor:
        """Read what was donated."""
        out, _ = fused.maybe_inplace(x, r, WEIGHT, 1e-5)
        return out + x  # type: ignore[no-any-return]

    compiled: Any = vllm_ir.compile(wrong, lower_to=lower)
    with pytest.raises(UsedAfterDonation) as caught:
        compiled(X.clone(), X.clone())
    error = caught.value
    assert (error.argument, error.expression) == ("x", "x")
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert text.count(str(error)) == 1
    assert len(text.splitlines()) < 12
    assert "_dynamo" not in text
    assert isinstance(error.__context__, torch._dynamo.exc.BackendCompilerFailed)
    original = error.__context__.inner_exception
    assert type(original) is UsedAfterDonation
    assert original is not error
    assert original.__traceback__ is not None


def test_what_a_users_pass_raised_is_the_cause_of_the_error() -> None:
    """Its author sees the line of the pass, and nothing of Dynamo's."""

    class Broken(GraphPass):
        """Raises."""

        def apply(self, graph: torch.fx.Graph) -> int:
            """Divide by nothing."""
            return len(graph.nodes) // 0

    compiled: Any = vllm_ir.compile(normalize, lower_to=lower, passes=[Broken()])
    with pytest.raises(BrokenPass) as caught:
        compiled(X)
    error = caught.value
    assert isinstance(error.__cause__, ZeroDivisionError)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    assert "return len(graph.nodes) // 0" in text
    assert "_dynamo" not in text


def test_an_error_of_the_model_is_the_models() -> None:
    """What the program raises, and what Dynamo says on its own, is left alone."""

    def wrong(x: Tensor) -> Tensor:
        """Add what does not fit."""
        return rms(x, WEIGHT, 1e-5) + torch.ones(3)  # type: ignore[no-any-return]

    with pytest.raises(torch._dynamo.exc.TorchRuntimeError) as caught:
        vllm_ir.compile(wrong, lower_to=lower, fullgraph=True)(X)
    assert not isinstance(caught.value, IrError)


@pytest.mark.parametrize(
    ("priority", "error"),
    [({"rms_nrom": "a"}, UnknownOp), ({"rms_norm": "nobody"}, UnknownProvider)],
)
def test_a_priority_that_cannot_be_is_an_error_of_the_first_call(priority: Any, error: type[Exception]) -> None:
    """By then every provider can have been found."""
    compiled: Any = vllm_ir.compile(normalize, lower_to=lower, priority=priority)
    with pytest.raises(error):
        compiled(X)


@pytest.mark.parametrize(
    ("model", "keywords", "words"),
    [
        (5, {}, "'model' is 5, wanted a module or a function"),
        (Net, {}, "wanted a module or a function"),
        (normalize, {"options": {"exact": True}}, "'exact' is among the options, wanted a keyword of its own"),
        (normalize, {"mode": "fastest"}, "'mode' is 'fastest', wanted one of 'default'"),
        (normalize, {"dynamic": "yes"}, "'dynamic' is 'yes', wanted True, False or None"),
        (normalize, {"fullgraph": "yes"}, "'fullgraph' is 'yes', wanted a bool"),
        (normalize, {"options": [1]}, r"'options' is \[1\], wanted a mapping of names to values"),
    ],
)
def test_what_cannot_be_is_said_before_any_call(model: Any, keywords: dict[str, Any], words: str) -> None:
    """A wrong argument is an error where it is written."""
    with pytest.raises(BadCompileOption, match=words):
        vllm_ir.compile(model, **keywords)


@pytest.mark.parametrize(
    ("args", "keywords", "words"),
    [
        ((), {"priorty": {}}, "has no argument 'priorty'; its keywords are 'priority', .*Did you mean 'priority'"),
        ((), {"max_autotune": True}, r"an option of Inductor: write options=\{'max_autotune': ...\}"),
        (({"rms_norm": "a"},), {}, r"takes the model alone by position, got \{'rms_norm': 'a'\} behind it"),
    ],
)
def test_an_argument_that_it_does_not_have_is_told_with_the_nearest(args: Any, keywords: Any, words: str) -> None:
    """As a TypeError, since the call is wrong."""
    package: Any = vllm_ir.compile
    with pytest.raises(UnknownCompileArgument, match=words) as caught:
        package(normalize, *args, **keywords)
    assert isinstance(caught.value, TypeError)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert str(again) == str(caught.value)


def test_the_package_is_the_function() -> None:
    """`vllm_ir.compile` is called like a function, has its signature, and is still the package of that name."""
    from vllm_ir.compile.backend import backend
    from vllm_ir.compile.function import compile_model

    package: Any = vllm_ir.compile
    assert callable(package)
    assert inspect.signature(package) == inspect.signature(compile_model)
    assert package.backend.backend is backend
