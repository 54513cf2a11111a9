"""Other compilers than Inductor: what they are given, forward and backward, and what they may leave to the helper."""

from __future__ import annotations

import pickle
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module
from torch.utils.checkpoint import checkpoint
from vllm_ir import ops, report
from vllm_ir.compile.backend import backend
from vllm_ir.compile.lower_to import lower_graph
from vllm_ir.compile.passes import GraphPass
from vllm_ir.errors import BadCompileOption, NoGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.runtime import Runtime

X, W = torch.linspace(-1, 1, 64).view(4, 16), torch.rand(16)
NORM, SWIGLU = ops.rms_norm.torch_op, ops.silu_and_mul.torch_op


def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Normalise, then gate."""
    found: torch.Tensor = ops.silu_and_mul(ops.rms_norm(x, weight, 1e-5) * 2)
    return found


def compiled(lower_to: Any, **options: Any) -> Any:
    """Return the block compiled by another compiler."""
    return torch.compile(block, backend=backend, options={"lower_to": lower_to, **options})


def count(module: torch.fx.GraphModule, target: Any) -> int:
    """Return how many nodes of a graph call something."""
    return len(module.graph.find_nodes(op="call_function", target=target))


class Halve(GraphPass):
    """Takes a factor of two back: what a pass of ten lines looks like."""

    def apply(self, graph: torch.fx.Graph) -> int:
        """Replace each product by its first factor."""
        found = graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
        for node in found:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        return len(found)


@pytest.mark.usefixtures("state")
def test_the_function_is_given_the_ops_behind_the_passes() -> None:
    """Whole, with fake results, and with its inputs; what it returns runs."""
    seen: list[Any] = []

    def compiler(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Look at the graph, lower it and let it run."""
        seen.append([count(module, target) for target in (NORM, SWIGLU, torch.ops.aten.mul.Tensor)])
        seen.append([tuple(value.shape) for value in inputs])
        assert all("val" in node.meta for node in module.graph.nodes if node.op == "call_function")
        lower_graph(module)
        return module

    got = compiled(compiler, passes=[Halve()])(X, W)
    assert seen == [[1, 1, 0], [(4, 16), (16,)]]
    native = ops.rms_norm.declaration.native(X, W, 1e-5)
    torch.testing.assert_close(got, ops.silu_and_mul.declaration.native(native))
    assert [(each.name, each.changes) for each in report().graphs[-1].passes] == [
        ("functionalization", 0),
        ("Halve", 1),
        ("lowering", 2),
    ]


@pytest.mark.usefixtures("state")
def test_backward_graphs_are_given_too() -> None:
    """With ops in them where they stand in backward again; both go by one plan and are two records."""
    seen: list[int] = []

    def recomputed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Call an op whose call stands in the backward graph again."""
        found: torch.Tensor = checkpoint(lambda t: block(torch.sin(t), weight), x, use_reentrant=False)
        return found

    def compiler(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Look at the graph, lower it and let it run."""
        assert inputs
        seen.append(count(module, NORM))
        lower_graph(module)
        return module

    x = X.clone().requires_grad_()
    torch.compile(recomputed, backend=backend, options={"lower_to": compiler})(x, W).sum().backward()
    assert seen == [1, 1]
    forward, backward = report().graphs
    assert (backward.name, backward.digest) == (f"{forward.name} backward", forward.digest)
    assert "rms_norm" in forward.selected
    assert "rms_norm" in backward.selected
    wanted = X.clone().requires_grad_()
    native = ops.rms_norm.declaration.native(torch.sin(wanted), W, 1e-5)
    ops.silu_and_mul.declaration.native(native * 2).sum().backward()
    torch.testing.assert_close(x.grad, wanted.grad)


class OtherCompiler:
    """Another compiler: it has a kernel of its own for one op, and leaves all others to whoever the priority names."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def kernel(self, x: torch.Tensor) -> torch.Tensor:
        """Gate, as this compiler does it."""
        self.calls.append("silu_and_mul")
        return torch.nn.functional.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :]

    def __call__(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Take what it has a kernel for, lower the rest, and return an interpreter of the graph."""
        assert inputs
        for node in module.graph.find_nodes(op="call_function", target=SWIGLU):
            node.target = self.kernel
        self.lowered = lower_graph(module)
        module.graph.lint()
        return torch.fx.Interpreter(module).run


def test_another_compiler_takes_some_ops_and_leaves_others(provide: Callable[..., None]) -> None:
    """What it took is no selection of ours; the rest runs by the priority of the compilation."""
    provide(ops.rms_norm, "functional")
    other = OtherCompiler()
    got = compiled(other, priority={"rms_norm": "probe"})(X, W)
    assert other.calls == ["silu_and_mul"]
    assert other.lowered.selected == {"rms_norm": {"rms_norm": "probe"}} == report().graphs[-1].selected
    native = ops.rms_norm.declaration.native(X, W, 1e-5)
    torch.testing.assert_close(got, ops.silu_and_mul.declaration.native(native * 2))


def test_a_graph_may_be_lowered_in_parts(provide: Callable[..., None]) -> None:
    """A part that was cut out goes by the compilation of the whole, and counts there."""
    provide(ops.rms_norm, "functional")
    provide(ops.silu_and_mul, "functional")

    def compiler(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Cut the graph in two behind the first op, and lower each part by itself."""
        assert inputs
        order = {node: place for place, node in enumerate(module.graph.nodes)}
        (norm,) = module.graph.find_nodes(op="call_function", target=NORM)
        parts = split_module(module, module, lambda node: int(order[node] > order[norm]))
        for part in parts.children():
            assert isinstance(part, torch.fx.GraphModule)
            lower_graph(part, of=module)
        return parts

    asked = {"rms_norm": "probe", "silu_and_mul": "probe"}
    got = compiled(compiler, priority=asked)(X, W)
    assert report().graphs[-1].counts == {"rms_norm": {"probe": 1}, "silu_and_mul": {"probe": 1}}
    native = ops.rms_norm.declaration.native(X, W, 1e-5)
    torch.testing.assert_close(got, ops.silu_and_mul.declaration.native(native * 2))


def test_any_functional_graph_can_be_lowered(provide: Callable[..., None], state: Runtime) -> None:
    """One that comes from nowhere of ours goes by the calling context, or by a plan that is given; inputs are kept."""
    provide(ops.rms_norm, "inplace")
    module = make_fx(block, tracing_mode="fake")(X.clone(), W)
    with ops.rms_norm.set_priority(["probe"]):
        lowered = lower_graph(module)
    assert lowered.selected["rms_norm"] == {"rms_norm": "probe"}
    x = X.clone()
    got = module(x, W)
    assert torch.equal(x, X)
    native = ops.rms_norm.declaration.native(X, W, 1e-5)
    torch.testing.assert_close(got, ops.silu_and_mul.declaration.native(native * 2))
    assert state.graphs.all() == ()


@pytest.mark.usefixtures("state")
def test_a_compiler_that_lowers_nothing_has_the_ops_run_as_they_are() -> None:
    """They dispatch when they are called."""
    run = torch.compile(block, backend=backend, options={"lower_to": lambda module, _: module})
    native = ops.rms_norm.declaration.native(X, W, 1e-5)
    torch.testing.assert_close(run(X, W), ops.silu_and_mul.declaration.native(native * 2))
    assert report().graphs[-1].selected == {}


@pytest.mark.usefixtures("state")
def test_the_names_are_where_a_user_looks() -> None:
    """`lower_graph` and `GraphPass` are names of the package."""
    package: Any = import_module("vllm_ir.compile")
    assert package.lower_graph is lower_graph
    assert package.GraphPass is GraphPass
    with pytest.raises(AttributeError, match="nothing"):
        package.nothing  # noqa: B018 - the access is the test


def test_a_priority_that_reaches_no_op_is_told(state: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    """An op that the compiler leaves dispatches when it runs; who had a word on that one call of it must know."""
    assert state is not None
    with torch.no_grad(), caplog.at_level("WARNING", logger="vllm_ir"):
        compiled(lambda module, _: module, priority={"rms_norm": ["native"]})(X, W)
    told = [record.getMessage() for record in caplog.records if "lower_to left it in the graph" in record.getMessage()]
    assert [text.split(":")[0] for text in told] == ["op rms_norm"]


@pytest.mark.usefixtures("state")
def test_ops_that_stay_whole_are_told_as_such() -> None:
    """Neither as run by somebody nor as not there; what a compiler took or lowered in a copy is not among them."""
    compiled(lambda module, _: module)(X, W)
    assert report().graphs[-1].whole == {"rms_norm": 1, "silu_and_mul": 1}
    assert "rms_norm whole, silu_and_mul whole, " in str(report().graphs[-1]).replace(";", ",")
    assert "no op in it" not in str(report().graphs[-1])
    compiled(OtherCompiler())(X, W)
    assert report().graphs[-1].whole == {}

    def in_a_copy(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Lower one part of a graph that was cut in two, and leave the other."""
        assert inputs
        (norm,) = module.graph.find_nodes(op="call_function", target=NORM)
        order = {node: place for place, node in enumerate(module.graph.nodes)}
        parts = split_module(module, module, lambda node: int(order[node] > order[norm]))
        first: Any = next(parts.children())
        lower_graph(first, of=module)
        return parts

    compiled(in_a_copy)(X, W)
    assert report().graphs[-1].whole == {"silu_and_mul": 1}
    assert report().graphs[-1].counts == {"rms_norm": {"native": 1}}


@pytest.mark.usefixtures("state")
def test_a_compiler_that_returns_nothing_is_told() -> None:
    """What it returned, and what is wanted."""
    nothing: Any = lambda _module, _inputs: None  # noqa: E731 - shorter than its type
    with pytest.raises(BadCompileOption, match="'lower_to' is a function that returned None, wanted one that returns"):
        vllm_ir.compile(block, lower_to=nothing)(X, W)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("arguments", "keywords", "words"),
    [
        ((3,), {}, "lower_graph: module is 3, wanted a torch.fx.GraphModule"),
        ((None,), {}, "lower_graph: module is None"),
        ((torch.fx.symbolic_trace(torch.nn.ReLU()),), {"of": 3}, "lower_graph: of is 3"),
    ],
)
def test_what_is_no_graph_is_told(arguments: Any, keywords: Any, words: str) -> None:
    """As a TypeError, since the call is wrong."""
    with pytest.raises(NoGraph, match=words) as caught:
        lower_graph(*arguments, **keywords)
    assert isinstance(caught.value, TypeError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own


@pytest.mark.usefixtures("state")
def test_a_graph_of_which_nothing_is_known_is_told() -> None:
    """One that was traced without inputs has no fake results, so nobody can be asked."""

    class Model(torch.nn.Module):
        """Calls an op."""

        def forward(self, x: torch.Tensor) -> Any:
            """Normalise."""
            return NORM(x, None, 1e-5)

    with pytest.raises(NoGraph, match="a graph without a fake result in node 'x'"):
        lower_graph(torch.fx.symbolic_trace(Model()))


def test_inductor_may_be_the_other_compiler(provide: Callable[..., None]) -> None:
    """Its cache takes the graph with what lower_graph has to know of it, and nothing is warned of.

    What is taken apart is the compiler's word; who runs what stays the compilation's.
    """
    provide(ops.rms_norm, "functional")
    from torch._dynamo.utils import counters
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    def compiler(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Lower a graph, take apart what Inductor wants so, and give it that."""
        lower_graph(module, table=select_decomp_table())
        return compile_fx_inner(module, inputs)

    with torch._inductor.config.patch(force_disable_caches=False, fx_graph_cache=True), torch.no_grad():
        counters.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = vllm_ir.compile(block, lower_to=compiler, priority={"rms_norm": "probe"})(X, W)
        assert report().graphs[-1].counts == {"rms_norm": {"probe": 1}, "silu_and_mul": {"native": 1}}
        assert counters["inductor"]["fxgraph_cache_bypass"] == 0
        assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] == 1
    native = ops.rms_norm.declaration.native(X, W, 1e-5)
    torch.testing.assert_close(got, ops.silu_and_mul.declaration.native(native * 2))
