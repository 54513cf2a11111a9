"""Which nodes share memory: told from schemas and fake results, also where a pass has replaced a copy by its source."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir.compile.aliases import Aliases
from vllm_ir.compile.clones import copy_argument, needing_copies

aten: Any = torch.ops.aten


def traced(function: Any, *inputs: Tensor) -> fx.Graph:
    """Return a function's graph with fake results."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        fakes = [mode.from_tensor(tensor) for tensor in inputs]
        module = make_fx(function)(*fakes)
    return module.graph


def nodes(graph: fx.Graph) -> dict[str, fx.Node]:
    """Return a graph's nodes by name."""
    return {node.name: node for node in graph.nodes}


def shared(graph: fx.Graph, one: str, other: str) -> bool:
    """Tell whether two nodes are taken to share memory."""
    aliases, found = Aliases(graph), nodes(graph)
    return bool(aliases.roots(found[one]) & aliases.roots(found[other]))


X = torch.randn(4, 8)
VIEWS = {
    "view": lambda y: aten.view.default(y, [32]),
    "unsafe_view": lambda y: aten._unsafe_view.default(y, [32]),
    "transpose": aten.t.default,
    "as_strided": lambda y: aten.as_strided.default(y, [2, 8], [8, 1]),
    "split": lambda y: aten.split.Tensor(y, 4, 1)[1],
    "unbind": lambda y: aten.unbind.int(y)[2],
    "slice of a view": lambda y: aten.slice.Tensor(aten.view.default(y, [32]), 0, 3, 9),
    "detach": aten.detach.default,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    """A view shares memory with its source, also when its source took the place of a copy and storages say no."""
    graph = traced(lambda x: VIEWS[name](aten.clone.default(x)), X)
    last = list(graph.nodes)[-2].name
    assert shared(graph, "clone", last)
    assert not Aliases(graph).owned_by_caller(nodes(graph)[last])
    clone = nodes(graph)["clone"]
    clone.replace_all_uses_with(clone.args[0])  # type: ignore[arg-type]
    graph.erase_node(clone)
    aliases = Aliases(graph)
    assert aliases.owned_by_caller(nodes(graph)[last])


def test_what_is_new() -> None:
    """Results of operations lie in memory of their own, those of one operation apart from each other."""
    graph = traced(lambda x: [*aten._foreach_add.Scalar([x, x * 2], 1.0), *aten.aminmax.default(x)], X)
    items = [node.name for node in graph.nodes if node.name.startswith("getitem")]
    assert len(items) == 4
    for index, one in enumerate(items):
        assert not Aliases(graph).owned_by_caller(nodes(graph)[one])
        assert not any(shared(graph, one, other) for other in items[index + 1 :])


def test_two_inputs_in_one_memory() -> None:
    """Two inputs that are views of one tensor share its memory."""
    graph = traced(lambda x, y: x + y, X[:2], X[2:])
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    with FakeTensorMode() as mode:
        base = mode.from_tensor(X)
        for node, part in zip(placeholders, (base[:2], base[2:]), strict=True):
            node.meta["val"] = part
    aliases = Aliases(graph)
    assert aliases.roots(placeholders[0]) == aliases.roots(placeholders[1])


def test_used_after() -> None:
    """Memory is used after a place if a member of it is read or returned there, and a new reader counts at once."""
    graph = traced(lambda x: (aten.view.default(x * 2, [32]).sum(), (x * 3).sum() + 1), X)
    found, aliases = nodes(graph), Aliases(graph)
    assert aliases.used_after(found["mul"], found["mul"])
    assert not aliases.used_after(found["mul"], found["sum_1"])
    assert aliases.used_after(found["view"], found["view"])
    assert aliases.used_after(found["sum_1"], found["sum_1"])
    with graph.inserting_after(found["sum_2"]):
        graph.call_function(aten.neg.default, (found["mul"],))
    assert aliases.used_after(found["mul"], found["sum_1"])


def test_replaced_results() -> None:
    """What replaces a result inherits its views and its readers; donated memory is the graph's once it was written."""
    graph = traced(lambda x: aten.view.default(aten.exp.default(x), [32]) + 1, X)
    found, aliases = nodes(graph), Aliases(graph)
    old = found["exp"]
    with graph.inserting_before(old):
        new = graph.call_function(aten.sin_.default, (old.args[0],))
    new.meta["val"] = value = old.args[0].meta["val"]  # type: ignore[union-attr]
    assert value is not None
    aliases.replace([new], [(old, new)])
    old.replace_all_uses_with(new)
    graph.erase_node(old)
    assert aliases.owned_by_caller(found["view"])
    aliases.take(new)
    assert not aliases.owned_by_caller(found["view"])
    assert aliases.used_after(new, new)
    assert not aliases.used_after(new, found["add"])


@pytest.mark.parametrize(
    ("function", "donated", "copies"),
    [
        (lambda x, r: (x * 1, r * 1), (), []),
        (lambda x, r: (x, r), (), [0, 1]),
        (lambda x, r: (x, r), (0, 1), []),
        (lambda x, r: (x, r), (1,), [0]),
        (lambda x, _: [x * 1] * 2, (), [0, 1]),
        (lambda x, r: (x.t().contiguous().t(), r * 1), (), [0]),
        (lambda x, r: ((x * 1)[:1].expand(4, 8), r * 1), (), [0]),
        (lambda x, r: ((x * 1)[:, ::2], (r * 1)[:, :4]), (), [0, 1]),
        (lambda x, r: tuple(torch.cat((x, r)).chunk(2)), (), [0, 1]),
    ],
    ids=["new", "inputs", "donated", "half", "twice", "transposed", "expanded", "strided", "parts"],
)
def test_where_copies_are_needed(function: Any, donated: tuple[int, ...], copies: list[int]) -> None:
    """An activation is copied if it is the caller's, is read elsewhere, or does not lie row by row."""

    def run(x: Tensor, r: Tensor) -> Any:
        """Call something with two activations."""
        one, two = function(x, r)
        return aten.maximum.default(one, two)

    graph = traced(run, X, X * 2)
    node = nodes(graph)["maximum"]
    assert needing_copies(node, node.args, (0, 1), donated, Aliases(graph)) == copies


def test_a_copy_has_a_fake_result_of_its_own() -> None:
    """A copy lies row by row in memory of its own, whatever it is a copy of."""
    graph = traced(lambda x: aten.exp.default(aten.t.default(x)), X)
    found = nodes(graph)
    copy = copy_argument(graph, found["exp"], found["t"])
    value, source = copy.meta["val"], found["t"].meta["val"]
    assert value.is_contiguous()
    assert value.shape == source.shape
    assert value.untyped_storage()._cdata != source.untyped_storage()._cdata
    graph.lint()
