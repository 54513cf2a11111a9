"""A compiled graph is used while the process wants what it was compiled by; a call in another scope is told, once."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._dynamo.utils
import torch._inductor.config
from torch import Tensor
from torch._inductor.utils import fresh_cache
from vllm_ir import IrOpPriorityConfig, KernelConfig, Platform, load_providers, ops, register_op
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.landscape import Landscape
from vllm_ir.priority import Layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
X, WEIGHT = torch.linspace(-1, 1, 4 * 8).reshape(4, 8), torch.linspace(0.5, 1.5, 8)


class Compiled:
    """A function of one op, compiled by one of the backends.

    Attributes:
        count: how many graphs were compiled.
    """

    def __init__(self, backend: str, *, dynamic: bool = False) -> None:
        self.count = 0

        def run(x: Tensor) -> Tensor:
            """Call an op."""
            return rms(x, WEIGHT, 1e-5) + 0  # type: ignore[no-any-return]

        compiler: Any = self.inductor if backend == "plain" else "vllm_ir"
        options: Any = None if backend == "plain" else {"lower_to": self.lower}
        self._run = torch.compile(run, backend=compiler, options=options, fullgraph=True, dynamic=dynamic)

    def lower(self, module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Lower a graph, and run it as it is."""
        self.count += 1
        lower_graph(module)
        return module

    def inductor(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        """Do what Inductor does, as far as there is a graph to make code of."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._inductor.compile_fx import compile_fx

        def run(graph: torch.fx.GraphModule, *_args: Any, **_options: Any) -> Any:
            """Run a graph as it is."""
            self.count += 1
            return make_boxed_func(graph.forward)

        return compile_fx(module, inputs, inner_compile=run)

    def __call__(self, x: Tensor = X) -> float:
        """Return what the provider that ran multiplies by."""
        with torch.no_grad():
            return round(float((self._run(x) / rms.declaration.native(x, WEIGHT, 1e-5)).mean()), 3)


class Other(Platform):
    """A machine where Inductor does not fuse native better than its kernels do."""

    def __init__(self) -> None:
        super().__init__(name="other", device_type="cpu", devices=())

    native_first_when_compiling = False


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings."""
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


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


@pytest.fixture(params=["vllm_ir", "plain"])
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """Give a compiled function of each kind."""
    return Compiled(request.param)


def test_a_change_compiles_anew_and_the_way_back_does_not(add: Any, compiled: Compiled) -> None:
    """Priorities A, B, A compile 1, 2, 2 times."""
    add("a", 2.0)
    seen = []
    for name in ("native", "a", "native", "a", "native"):
        rms.set_default(name)
        seen += [(compiled(), compiled.count) for _ in range(2)]
    assert seen == [(1, 1), (1, 1), (2, 2), (2, 2), *[(1, 2), (1, 2), (2, 2), (2, 2)], (1, 2), (1, 2)]


def test_whoever_changes_the_order_is_seen(add: Any, compiled: Compiled, state: Runtime) -> None:
    """A configuration, a command line, a late implementation of a named provider and what discovery finds."""
    add("a", 2.0)
    assert (compiled(), compiled.count) == (1, 1)
    KernelConfig({"rms_norm": ["a"]}).apply()
    assert (compiled(), compiled.count) == (2, 2)
    KernelConfig().apply()
    IrOpPriorityConfig.with_default("a").apply(Layer.COMMAND_LINE)
    assert compiled() == 2
    IrOpPriorityConfig().apply(Layer.COMMAND_LINE)
    assert compiled() == 1
    # A platform of somebody's own that wants a provider first, also where graphs are compiled.
    first = {"rms_norm": ("b",)}
    state.adopt(Landscape(platform=Other(), platform_defaults={True: first, False: first}))
    before = compiled.count
    assert (compiled(), compiled.count) == (1, before)
    add("b", 3.0)
    assert (compiled(), compiled.count) == (3, before + 1)


def test_what_changes_nothing_compiles_nothing(add: Any, compiled: Compiled) -> None:
    """Other ops, a provider that nobody named, discovery, and the same priority said again."""
    add("a", 2.0)
    rms.set_default("a")
    assert (compiled(), compiled.count) == (2, 1)
    rms.set_default(["a"])
    add("b", 3.0)
    ops.silu_and_mul.set_default("native")
    load_providers()

    @register_op(name="another_op_of_a_test")
    def another(x: Tensor) -> Tensor:
        """Be an op."""
        return x.clone()

    assert another.name
    assert (compiled(), compiled.count) == (2, 1)


@pytest.mark.parametrize("name", ["a", "native"])
def test_a_call_in_another_scope_is_told_once(
    add: Any, compiled: Compiled, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The graph keeps what it was compiled by; the warning names the graph, both priorities and the way out."""
    add("a", 2.0)
    add("b", 3.0)
    rms.set_default("native")
    assert compiled() == 1
    caplog.clear()
    with rms.set_priority(name):
        first = [compiled() for _ in range(3)]
    assert first == [1, 1, 1]
    if name == "native":
        assert told(caplog) == []
        return
    (warning,) = told(caplog)
    assert "graph 0/0 was compiled in a context with the priority rms_norm=native" in warning
    assert "in one with rms_norm=a" in warning
    assert "vllm_ir.compile(model)" in warning
    with rms.set_priority("b"):
        compiled()
    assert compiled.count == 1
    assert len(told(caplog)) == 1


def test_a_graph_takes_the_scope_it_is_compiled_in(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """And tells a call outside."""
    add("a", 2.0)
    compiled = Compiled("vllm_ir")
    with rms.set_priority("a"):
        assert compiled() == 2
        assert compiled() == 2
        assert told(caplog) == []
    assert (compiled(), compiled.count) == (2, 1)
    assert "with the priority rms_norm=a" in caplog.text
    assert "in one with rms_norm=native" in caplog.text


def test_a_whole_op_of_a_plain_graph_follows_every_scope(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It dispatches when it runs, so there is nothing to tell."""
    add("a", 2.0)
    add("b", 3.0)
    rms.set_default("a")
    compiled = Compiled("plain")
    assert compiled() == 2
    with rms.set_priority("b"):
        assert compiled() == 3
    with rms.set_priority("native"):
        assert compiled() == 1
    assert compiled.count == 1
    assert told(caplog) == []


def test_a_scope_for_an_op_that_is_not_in_the_graph_is_nothing_to_tell(
    compiled: Compiled, add: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what would run otherwise is told."""
    add("a", 2.0)
    compiled()
    native = ops.silu_and_mul.declaration.native
    ops.silu_and_mul.register_impl("a")(native)
    with ops.silu_and_mul.set_priority("a"):
        compiled()
    assert told(caplog) == []


def test_a_graph_for_another_shape_is_not_told(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A graph that does not take the call has nothing to say about its scope."""
    add("a", 2.0)
    compiled = Compiled("vllm_ir")
    assert compiled(X) == 1
    with rms.set_priority("a"):
        assert compiled(X[:3]) == 2
        assert compiled(X[:3]) == 2
    assert compiled(X) == 1
    assert compiled.count == 2
    assert told(caplog) == []


def test_a_thread_in_a_scope_is_told(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The scope of the thread that calls counts, not that of the one that compiled."""
    add("a", 2.0)
    compiled = Compiled("vllm_ir")
    compiled()
    seen: list[float] = []

    def serve() -> None:
        """Call in a scope."""
        with rms.set_priority("a"):
            seen.append(compiled())

    thread = threading.Thread(target=contextvars.Context().run, args=(serve,))
    thread.start()
    thread.join(60)
    assert seen == [1.0]
    assert caplog.text.count("was compiled in a context") == 1
    assert compiled() == 1


def test_a_task_in_a_scope_is_told(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """So does that of a task, also while another one that is in no scope runs between."""
    add("a", 2.0)
    compiled = Compiled("vllm_ir")

    async def outside() -> list[float]:
        """Call in no scope."""
        found = []
        for _ in range(3):
            found.append(compiled())
            await asyncio.sleep(0)
        return found

    async def inside() -> list[float]:
        """Call in one."""
        with rms.set_priority("a"):
            return await outside()

    async def both() -> list[list[float]]:
        """Run two tasks."""
        return list(await asyncio.gather(outside(), inside()))

    assert asyncio.run(both()) == [[1.0] * 3, [1.0] * 3]
    assert caplog.text.count("was compiled in a context") == 1


def test_a_priority_given_with_the_graph_comes_before_scopes(add: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What options name goes first everywhere, so a scope that wants something else changes nothing at the head."""
    add("a", 2.0)
    add("b", 3.0)

    def run(x: Tensor) -> Tensor:
        """Call an op."""
        return rms(x, WEIGHT, 1e-5)  # type: ignore[no-any-return]

    def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Lower a graph."""
        lower_graph(module)
        return module

    options: Any = {"lower_to": lower, "priority": {"rms_norm": "a"}}
    given: Any = torch.compile(run, backend="vllm_ir", options=options)
    first = given(X)
    with rms.set_priority("b"):
        assert torch.equal(given(X), first)
    assert "in a context" not in caplog.text


def test_a_graph_with_breaks_is_guarded_in_every_part(add: Any) -> None:
    """Also those that are compiled behind a break."""
    add("a", 2.0)

    def lower(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Lower a graph."""
        lower_graph(module)
        return module

    def run(x: Tensor) -> Tensor:
        """Call an op before and behind a break."""
        x = rms(x, WEIGHT, 1e-5)
        torch._dynamo.graph_break()
        return rms(x, WEIGHT, 1e-5)  # type: ignore[no-any-return]

    parts: Any = torch.compile(run, backend="vllm_ir", options={"lower_to": lower})
    for name in ("native", "a", "native"):
        rms.set_default(name)
        torch.testing.assert_close(parts(X), run(X))


def test_a_stack_of_changes_is_one_comparison(add: Any) -> None:
    """Changes that lead back to the same priority before the next call compile nothing."""
    add("a", 2.0)
    compiled = Compiled("vllm_ir")
    rms.set_default("native")
    compiled()
    for _ in range(20):
        rms.set_default("a")
        rms.set_default("native")
    assert (compiled(), compiled.count) == (1, 1)


def test_a_change_while_a_graph_is_compiled_is_not_lost(add: Any) -> None:
    """The graph that comes of it goes by what held before, and is not used again."""
    add("a", 2.0)
    count = [0]

    def compiler(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Lower a graph, and let somebody change the priority meanwhile."""
        count[0] += 1
        lower_graph(module)
        rms.set_default("a")
        return module

    def run(x: Tensor) -> Tensor:
        """Call an op."""
        return rms(x, WEIGHT, 1e-5)  # type: ignore[no-any-return]

    options: Any = {"lower_to": compiler}
    compiled: Any = torch.compile(run, backend="vllm_ir", options=options)
    native = rms.declaration.native(X, WEIGHT, 1e-5)
    for factor, graphs in ((1, 1), (2, 2), (2, 2)):
        torch.testing.assert_close(compiled(X), native * factor)
        assert count == [graphs]


@pytest.mark.parametrize("backend", ["inductor", "vllm_ir"])
def test_a_graph_from_a_cache_is_guarded_alike(add: Any, backend: str) -> None:
    """No pass and no recording of ours runs then, but what is in the graph is known."""
    add("a", 2.0)

    def run(x: Tensor) -> Tensor:
        """Call an op."""
        return rms(x, WEIGHT, 1e-5)  # type: ignore[no-any-return]

    native = rms.declaration.native(X, WEIGHT, 1e-5)
    counters = torch._dynamo.utils.counters
    with torch._inductor.config.patch(force_disable_caches=False), fresh_cache(), torch.no_grad():
        for cached in (False, True):
            torch._dynamo.reset()
            counters.clear()
            rms.set_default("native")
            compiled: Any = torch.compile(run, backend=backend, fullgraph=True)
            for name, factor in (("native", 1), ("a", 2), ("native", 1)):
                rms.set_default(name)
                torch.testing.assert_close(compiled(X), native * factor)
            assert counters["stats"]["unique_graphs"] == 2
            assert counters["aot_autograd"]["autograd_cache_hit"] == (2 if cached else 0)
