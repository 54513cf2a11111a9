"""Every way of making a graph shows an op as one opaque node, whatever was called or configured before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._dynamo.testing import EagerAndRecordGraphs
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Positional(torch.nn.Module):
    """A program of x and a residual as a module."""

    def __init__(self, function: Callable[..., Tensor], weight: Tensor) -> None:
        super().__init__()
        self.function = function
        self.weight = weight

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        """Run the program."""
        return self.function(x, r, self.weight)


def check(situation: Any, graph: torch.fx.Graph) -> Any:
    """Fail unless the op is one node of the graph; return it."""
    (node,) = situation.program.nodes(graph)
    return node


@pytest.mark.parametrize("form", ["function", "keywords"])
def test_dynamo(situation: Any, inputs: Inputs, form: str) -> None:
    """Dynamo traces the whole function with the op as one node, and the graph runs the provider that must run."""
    backend = EagerAndRecordGraphs()
    traced = getattr(situation.program, form)()
    compiled: Any = torch.compile(traced, backend=backend, fullgraph=True)
    result = compiled(*inputs)
    (graph,) = backend.graphs
    check(situation, graph.graph)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))
    situation.check_runs()


def test_dynamo_on_a_module(situation: Any, inputs: Inputs) -> None:
    """A module that holds the weight as a parameter is traced whole."""
    backend = EagerAndRecordGraphs()
    compiled: Any = torch.compile(situation.program.module(), backend=backend, fullgraph=True)
    with torch.no_grad():
        compiled(*inputs[:2])
    check(situation, backend.graphs[0].graph)


def test_dynamo_with_a_dynamic_batch(situation: Any, inputs: Inputs) -> None:
    """Three batch sizes need one compilation."""
    backend = EagerAndRecordGraphs()
    compiled: Any = torch.compile(situation.program.function(), backend=backend, fullgraph=True, dynamic=True)
    for tokens in (4, 7, 9):
        x, r = torch.randn(tokens, 64), torch.randn(tokens, 64)
        expected = situation.program.expected(x, r, inputs[2], situation.factor)
        torch.testing.assert_close(compiled(x, r, inputs[2]), expected)
    assert len(backend.graphs) == 1
    check(situation, backend.graphs[0].graph)


def test_dynamo_explain(program: Any, inputs: Inputs) -> None:
    """Dynamo's own explanation counts no break."""
    told = torch._dynamo.explain(program.function())(*inputs)
    assert (told.graph_break_count, told.graph_count) == (0, 1)


@pytest.mark.parametrize("form", ["function", "keywords", "module"])
def test_symbolic_trace(situation: Any, form: str) -> None:
    """fx.symbolic_trace, which runs the program on proxies, records one node and calls no kernel."""
    graph = torch.fx.symbolic_trace(getattr(situation.program, form)())
    check(situation, graph.graph)
    situation.check_idle()


def test_a_symbolic_trace_runs(situation: Any, inputs: Inputs) -> None:
    """The traced graph module runs the provider that must run."""
    result = torch.fx.symbolic_trace(situation.program.function())(*inputs)
    torch.testing.assert_close(result, situation.program.expected(*inputs, situation.factor))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic", "pre_dispatch"])
def test_make_fx(situation: Any, inputs: Inputs, mode: str) -> None:
    """make_fx records one node in each of its modes; on fake tensors no kernel is called."""
    options: dict[str, Any] = {"pre_dispatch": True} if mode == "pre_dispatch" else {"tracing_mode": mode}
    graph = make_fx(situation.program.function(), **options)(*inputs)
    check(situation, graph.graph)
    if mode in ("fake", "symbolic"):
        situation.check_idle()
    torch.testing.assert_close(graph(*inputs), situation.program.expected(*inputs, situation.factor))


@pytest.mark.parametrize("strict", [False, True])
def test_export(situation: Any, inputs: Inputs, strict: bool) -> None:
    """torch.export keeps the op as one node, calls no kernel, and its program runs the provider that must run."""
    module = situation.program.module()
    exported = torch.export.export(module, inputs[:2], strict=strict)
    check(situation, exported.graph)
    situation.check_idle()
    result: Tensor = exported.module()(*inputs[:2])
    torch.testing.assert_close(result, module(*inputs[:2]))


def test_export_with_a_dynamic_batch(program: Any, inputs: Inputs) -> None:
    """An exported program takes other batch sizes: nothing in an op looks at the number of tokens."""
    module = Positional(program.function(), inputs[2])
    batch = torch.export.Dim("batch")
    exported = torch.export.export(module, inputs[:2], dynamic_shapes=({0: batch}, {0: batch}))
    assert len(program.nodes(exported.graph)) == 1
    x, r = torch.randn(7, 64), torch.randn(7, 64)
    torch.testing.assert_close(exported.module()(x, r), program.expected(x, r, inputs[2]))


def test_functionalize(situation: Any, inputs: Inputs) -> None:
    """torch.func.functionalize under make_fx keeps one node, and it is the functional one."""
    graph = make_fx(torch.func.functionalize(situation.program.function()))(*inputs)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count(situation.program.op.torch_op) == 1
    situation.program.nodes(graph.graph)
    torch.testing.assert_close(graph(*inputs), situation.program.expected(*inputs, situation.factor))
