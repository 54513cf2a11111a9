"""The stages in their order: what passes see, what they may do, what becomes of broken ones, and the user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import ops, register_op, report
from vllm_ir.compile.backend import backend
from vllm_ir.compile.passes import GraphPass
from vllm_ir.compile.pipeline import Pipeline
from vllm_ir.compile.plan import Plan
from vllm_ir.errors import BrokenPass

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_ir.runtime import Runtime

    from core.tests.compile.conftest import Lowerer

X, W = torch.linspace(-1, 1, 64).view(4, 16), torch.rand(16)
NORM, SWIGLU = ops.rms_norm.torch_op, ops.silu_and_mul.torch_op


def donating(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Donate what the function is given."""
    out, total = ops.fused_add_rms_norm.maybe_inplace(x, residual, weight, 1e-5)
    return out, total


class Watching(GraphPass):
    """Notes what is in the graph, in a list that is not its own."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name = name
        self._seen = seen

    def apply(self, graph: torch.fx.Graph) -> int:
        """Note each op's overload."""
        targets = [node.target for node in graph.nodes if node.op == "call_function"]
        self._seen.append((self.name, [t for t in targets if t is ops.fused_add_rms_norm.torch_op]))
        return 0


def run(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what a function returns, compiled without Inductor."""
    from vllm_ir.compile.lower_to import lower_graph

    def lower(module: torch.fx.GraphModule, _: Any) -> Any:
        """Lower a graph and let torch run it."""
        lower_graph(module)
        return module

    return torch.compile(function, backend=backend, options={"lower_to": lower, **options}, fullgraph=True)(*args)


def test_passes_run_in_order_between_functionalization_and_lowering(state: Runtime) -> None:
    """The user's as they were given, then those of distributions; each sees functional ops, whole."""
    seen: list[Any] = []
    brought = (("first", Watching("c", seen)), ("second", Watching("a", seen)))
    state.adopt(replace(state.landscape, passes=brought))
    run(donating, X.clone(), X.clone(), W, passes=[Watching("b", seen), Watching("b", seen)])
    functional = [ops.fused_add_rms_norm.torch_op]
    assert seen == [("b", functional), ("b", functional), ("c", functional), ("a", functional)]
    names = [each.name for each in report().graphs[-1].passes]
    assert names == ["functionalization", "b", "b", "c", "a", "lowering"]
    assert report().graphs[-1].passes[0].changes == 1


def test_ops_that_were_registered_later_are_lowered_too(state: Runtime) -> None:
    """What there is to lower is read for each graph, not when the backend was made."""
    assert state is not None
    backends = torch.compile(lambda x: ops.rms_norm(x, W, 1e-5), backend=backend, options={"lower_to": lambda m, _: m})
    backends(X)

    @register_op
    def added_later(x: torch.Tensor) -> torch.Tensor:
        """Double it."""
        return x * 2

    @added_later.register_impl("probe")
    def by_sum(x: torch.Tensor) -> torch.Tensor:
        """Add it to itself."""
        return x + x

    assert by_sum.provider == "probe"
    got = run(lambda x: added_later(x) + 1, X, priority={"added_later": "probe"})
    assert torch.equal(got, X * 2 + 1)
    assert report().graphs[-1].selected == {"added_later": {"added_later": "probe"}}


class Inserting(GraphPass):
    """Puts an op behind another one and leaves its fake result to others."""

    def apply(self, graph: torch.fx.Graph) -> int:
        """Gate what each normalisation returns, which halves its last size."""
        found = graph.find_nodes(op="call_function", target=NORM)
        for node in found:
            with graph.inserting_after(node):
                new = graph.call_function(SWIGLU, (node,))
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
        return len(found)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_pass_inserts_gets_its_fake_result(dynamic: bool) -> None:
    """And what reads it, where that is of another size now."""
    sizes: list[Any] = []

    class Looking(GraphPass):
        """Notes the last size of every result."""

        def apply(self, graph: torch.fx.Graph) -> int:
            """Look at metadata only."""
            sizes.extend(node.meta["val"].shape[-1] for node in graph.nodes if node.op == "call_function")
            return 0

    x = X.clone()
    if dynamic:
        torch._dynamo.mark_dynamic(x, 0)
    got = run(lambda t: (ops.rms_norm(t, W, 1e-5) + 1).cos(), x, passes=[Inserting(), Looking()])
    assert sizes == [16, 8, 8, 8]
    native = ops.silu_and_mul.declaration.native(ops.rms_norm.declaration.native(X, W, 1e-5))
    torch.testing.assert_close(got, (native + 1).cos())


INSERTED: dict[str, tuple[Any, Callable[[Any], tuple[Any, ...]]]] = {
    "fake": (SWIGLU, lambda norm: (norm, norm)),
    "input": (torch.ops.aten.mul_.Tensor, lambda norm: (norm.args[0], 2)),
    "view": (torch.ops.aten.add_.Tensor, lambda norm: (norm, 2)),
    "donating": (
        ops.fused_add_rms_norm.maybe_inplace.torch_op,
        lambda norm: (norm, norm.args[0], None, 1e-5),
    ),
}
"""What a pass inserts that it must not, and what it gives that."""

ANSWERS: dict[str, Any] = {"answer": None, "negative": -1, "bool": True, "float": 1.0}


class Broken(GraphPass):
    """Breaks in one of several ways."""

    def __init__(self, how: str) -> None:
        self.how = how

    def apply(self, graph: torch.fx.Graph) -> Any:
        """Raise, forget the answer, leave a graph that does not hold together, or insert what cannot be."""
        (norm,) = graph.find_nodes(op="call_function", target=NORM)
        if self.how == "raises":
            message = "no such\nnode"
            raise KeyError(message)
        if self.how == "graph":
            other = torch.fx.Graph()
            norm.args = (other.placeholder("stranger"), *norm.args[1:])
        if self.how in INSERTED:
            with graph.inserting_after(norm):
                target, given = INSERTED[self.how]
                graph.call_function(target, given(norm))
        if self.how == "results":
            graph.output_node().args = ((norm, norm),)
        if self.how == "inputs":
            graph.placeholder("more")
        return ANSWERS.get(self.how, 1)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "KeyError: "),
        ("answer", "apply returned NoneType, wanted the number of changes"),
        ("negative", "apply returned -1, wanted the number of changes, from 0 on"),
        ("bool", "apply returned bool, wanted the number of changes"),
        ("float", "apply returned float, wanted the number of changes"),
        ("graph", "RuntimeError: "),
        ("fake", "RuntimeError: "),
        ("input", "its node 'mul__tensor' (aten.mul_.Tensor) writes to 'arg0_1', an input of the graph"),
        (
            "view",
            "its node 'add__tensor' (aten.add_.Tensor) writes to 'rms_norm', and a pass leaves the graph functional",
        ),
        ("donating", "(vllm_ir.fused_add_rms_norm.maybe_inplace) writes to "),
        ("results", "it left the graph with 2 results, wanted 1 as before"),
        ("inputs", "it changed the inputs of the graph from 'arg0_1', 'arg1_1' to 'arg0_1', 'arg1_1', 'more'"),
    ],
)
def test_a_broken_pass_is_named(how: str, said: str) -> None:
    """With what went wrong in one line, and what to do."""
    with pytest.raises(Exception, match="Graph pass 'Broken' failed: ") as caught:
        run(lambda x: ops.rms_norm(x, W, 1e-5), X, passes=[Broken(how)])
    error = caught.value.inner_exception if hasattr(caught.value, "inner_exception") else caught.value
    assert isinstance(error, BrokenPass)
    assert said in error.cause
    assert "\n" not in error.cause
    assert "leave it out of passes=[...]" in str(error)


@pytest.mark.usefixtures("state")
def test_a_graph_is_looked_at_whatever_a_pass_says_it_did() -> None:
    """One that says that it changed nothing, and lies, is found out, too."""

    class Lying(GraphPass):
        """Takes an input from another graph."""

        def apply(self, graph: torch.fx.Graph) -> int:
            """Break the graph and deny it."""
            (norm,) = graph.find_nodes(op="call_function", target=NORM)
            norm.args = (torch.fx.Graph().placeholder("stranger"), *norm.args[1:])
            return 0

    with pytest.raises(Exception, match="Graph pass 'Lying' failed: RuntimeError: "):
        run(lambda x: ops.rms_norm(x, W, 1e-5), X, passes=[Lying()])


@pytest.mark.usefixtures("state")
def test_a_write_that_the_program_asks_for_is_nobodys_fault() -> None:
    """What AOTAutograd put in to write an input back stays through every pass."""

    def written(x: torch.Tensor) -> torch.Tensor:
        """Write to what was given."""
        return ops.rms_norm(x.mul_(2), W, 1e-5)  # type: ignore[no-any-return]

    x = X.clone()
    with torch.no_grad():
        run(written, x, passes=[Watching("b", []), Inserting()])
    assert torch.equal(x, X * 2)


def test_a_broken_pass_of_a_distribution_names_that(state: Runtime) -> None:
    """The operator can deny it."""
    state.adopt(replace(state.landscape, passes=(("vendor-wheel", Broken("raises")),)))
    with pytest.raises(Exception, match=r"Graph pass 'Broken' of vendor-wheel failed: .* or deny vendor-wheel"):
        run(lambda x: ops.rms_norm(x, W, 1e-5), X)


@pytest.mark.usefixtures("state")
def test_the_users_own_inductor_passes_are_chained() -> None:
    """Ours is first before AOTAutograd; theirs are before lowering where ops are whole, and behind it."""
    pipeline = Pipeline(Plan.take(), {})
    mine = {
        "pre_grad_custom_pass": object(),
        "post_grad_custom_pre_pass": object(),
        "post_grad_custom_post_pass": (object(), object()),
    }
    patches = pipeline.patches({**mine, "joint_custom_pre_pass": None})
    assert set(patches) == set(mine)
    for place, ours_first in (
        ("pre_grad_custom_pass", True),
        ("post_grad_custom_pre_pass", False),
        ("post_grad_custom_post_pass", True),
    ):
        theirs = mine[place] if isinstance(mine[place], tuple) else (mine[place],)
        chain = patches[place]
        if not isinstance(chain, tuple):
            pytest.skip("this torch takes one pass a place; see test_torch_passes.py")
        kept = chain[1:] if ours_first else chain[:-1]
        assert kept == theirs
        ours = chain[0] if ours_first else chain[-1]
        assert pipeline.plan.digest in ours.uuid()


def test_the_users_inductor_passes_see_ops_before_and_kernels_behind(compiled: Lowerer) -> None:
    """Set where Inductor takes them, in this process; one compilation by Inductor."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    seen: dict[str, int] = {}

    class Counting(CustomGraphPass):
        """Counts ops."""

        def __init__(self, place: str) -> None:
            self.place = place

        def __call__(self, graph: torch.fx.Graph) -> None:
            """Count calls of the op."""
            seen[self.place] = len(graph.find_nodes(op="call_function", target=NORM))

        def uuid(self) -> Any:
            """Return a key."""
            return self.place

    places = {f"post_grad_custom_{which}_pass": Counting(which) for which in ("pre", "post")}
    with config.patch(places):
        got = compiled(lambda x: ops.rms_norm(x, W, 1e-5), inductor=True, provider=None)(X)
    assert seen == {"pre": 1, "post": 0}
    torch.testing.assert_close(got, ops.rms_norm.declaration.native(X, W, 1e-5))
