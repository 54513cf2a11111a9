"""Whoever else looks at a graph sees whole ops: other backends, tables that say so, graphs without Dynamo, exports."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.fx.experimental.proxy_tensor import make_fx
from vllm_ir import ops
from vllm_ir.compile.plain import decompositions_without_ops

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm


def test_other_backends_see_whole_ops(plain: Any) -> None:
    """What another backend gets from AOTAutograd holds each op as one functional node."""
    backend = AotEagerAndRecordGraphs()
    run: Any = torch.compile(plain.layer, fullgraph=True, backend=backend)
    with torch.no_grad():
        run(*plain.inputs())
    (graph,) = backend.fw_graphs
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert [t for t in targets if t in (rms.torch_op, fused.torch_op)] == [rms.torch_op, fused.torch_op]
    assert not any("mean" in str(target) for target in targets)


def test_a_table_without_our_ops_keeps_them_whole(plain: Any) -> None:
    """A backend that compiles with it meets every op behind AOTAutograd; one that does not, none."""
    for table, kept in ((decompositions_without_ops, [rms.torch_op, fused.torch_op]), (None, [])):
        torch._dynamo.reset()
        recorder = plain.Recorder(table)
        run: Any = torch.compile(plain.layer, fullgraph=True, backend=recorder)
        with torch.no_grad():
            run(*plain.inputs())
        assert recorder.calls == [kept]


def test_a_graph_that_reaches_inductor_without_dynamo_keeps_ops_whole(plain: Any) -> None:
    """Its key was worked out before anybody could tell what would be inlined; whole ops are right all the same."""
    args = plain.inputs()
    recorder = plain.Recorder()
    with torch.no_grad():
        got = recorder(make_fx(plain.layer)(*args), args)(*args)
    assert recorder.calls == [[rms.torch_op, fused.torch_op]]
    torch.testing.assert_close(tuple(got), plain.layer(*args))


def test_an_exported_program_is_inlined_when_it_is_compiled(plain: Any) -> None:
    """torch.export keeps the op, and torch.compile of what it returns does not."""

    class Program(torch.nn.Module):
        """One op."""

        def forward(self, x: Tensor, w: Tensor) -> Tensor:
            """Run it."""
            return rms(x, w, 1e-5) + 1  # type: ignore[no-any-return]

    x, _, w = plain.inputs()
    exported = torch.export.export(Program(), (x, w))
    assert rms.torch_op in [node.target for node in exported.graph.nodes]
    got, calls = plain.recorded(exported.module(), x, w)
    assert calls == []
    torch.testing.assert_close(got, Program()(x, w))
