"""An implementation becomes a graph once for each kind of arguments, and each copy of it is a call's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from vllm_ir import ops
from vllm_ir.compile.graph import contiguous, source_of
from vllm_ir.compile.tracing import describe, sharing, trace

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm


def fakes(*shapes: tuple[int, ...]) -> list[Tensor]:
    """Return fake tensors."""
    mode = torch._subclasses.FakeTensorMode()
    return [mode.from_tensor(torch.empty(shape)) for shape in shapes]


def test_what_a_trace_depends_on() -> None:
    """Sizes, strides, dtype, a number and its kind tell arguments apart; what a tensor holds does not."""
    (x, same, other) = fakes((4, 8), (4, 8), (4, 9))
    assert describe(x) == describe(same)
    assert len({describe(v) for v in (x, other, x.t(), x.double(), x[1:], torch.nn.Parameter(torch.empty(4, 8)))}) == 6
    assert len({describe(v) for v in (1, 1.0, True, None, "1", (1,), (1, 1))}) == 7
    assert sharing([x, same]) != sharing([x, x[1:]])
    assert sharing([x, x[1:]]) == sharing([same, same.t()])


def test_two_arguments_that_are_one_object_stay_two_inputs() -> None:
    """A trace for the same tensor twice serves two tensors that share memory: each is an input of its own."""
    (x,) = fakes((4, 8))
    traced = trace(lambda a, b: a * 2 + b, [x, x], {})
    first, second = traced.module.graph.find_nodes(op="placeholder")
    assert len(first.users) == len(second.users) == 1
    assert not traced.several
    assert traced.results[0].shape == (4, 8)


@pytest.mark.parametrize("distinct", [False, True])
def test_layers_of_one_kind_are_traced_once(provide: Any, compiled: Any, distinct: bool) -> None:
    """Calls with the same kind of arguments share a trace; their fake results never lie in one memory."""
    provide(fused, "inplace")

    def run(x: Tensor, r: Tensor) -> Any:
        """Call an op three times on new tensors, and on results of two calls at once."""
        one, two = fused(x * 1, r * 1, None, 1e-5), fused(x * 2, r * 2, None, 1e-5)
        width = x.shape[1] // (2 if distinct else 1)
        return fused(one[0][:, :width] * 1, two[0][:, :width] * 1, None, 1e-5), fused(one[1], two[1], None, 1e-5)

    x, r = torch.randn(4, 8), torch.randn(4, 8)
    with torch.no_grad():
        for mine, theirs in zip(*map(torch.utils._pytree.tree_leaves, (compiled(run)(x, r), run(x, r))), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert compiled.lowered[0].traces == (2 if distinct else 1)


def test_the_users_line_is_the_innermost_that_a_user_wrote() -> None:
    """Of a node's stack the last frame counts that is in a file, and not in a function made from text."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    assert source_of(node) == ""
    node.meta["stack_trace"] = (
        'File "model.py", line 3, in forward\n    y = layer(x)\n  File "layer.py", line 9, in run\n    return op(x)\n'
        '  File "<vllm_ir op_traced>", line 2, in op_traced\n    return _ir_torch_op(x)'
    )
    assert source_of(node) == "layer.py:9, in run: return op(x)"


@pytest.mark.parametrize(
    ("tensor", "rows"),
    [
        (torch.empty(4, 8), True),
        (torch.empty(8, 4).t(), False),
        (torch.empty(4, 8)[:, ::2], False),
        (torch.empty(4, 8)[1:2, :4], True),
        (torch.empty(4, 8)[:0, ::2], True),
        (torch.empty(1, 8).expand(4, 8), False),
        (torch.empty(()), True),
        (torch.empty(4, 1, 8).transpose(0, 1), True),
    ],
)
def test_contiguous(tensor: Tensor, rows: bool) -> None:
    """A tensor lies in rows without gaps exactly where torch says so, told without asking about open sizes."""
    assert contiguous(tensor) == rows == tensor.is_contiguous()
