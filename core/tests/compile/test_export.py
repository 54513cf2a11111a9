"""What torch.export makes of a model keeps the ops, and can be compiled, decomposed, saved and loaded elsewhere."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from torch import Tensor, nn
from vllm_ir import ops
from vllm_ir.compile.lower_to import lower_graph

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm
silu: Any = ops.silu_and_mul
gelu: Any = ops.gelu_and_mul
rotary: Any = ops.rotary_embedding
ALL = (rms, fused, silu, gelu, rotary)
WIDTH, NEOX = 8, True
ONE_EACH = {op.torch_op: 1 for op in ALL}
DONATING = {getattr(op, "maybe_inplace", op).torch_op: 1 for op in ALL}


class Layer(nn.Module):
    """A layer of all ops, as plain calls or as calls that donate what can be donated."""

    def __init__(self, *, donates: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH), requires_grad=False)
        angles = torch.outer(torch.arange(8.0), torch.tensor([1.0, 0.3]))
        self.register_buffer("cache", torch.cat((angles.cos(), angles.sin()), dim=-1))
        self.add, self.turn = (fused.maybe_inplace, rotary.maybe_inplace) if donates else (fused, rotary)

    def forward(self, x: Tensor, r: Tensor, positions: Tensor) -> Tensor:
        """Run the layer."""
        out, total = self.add(rms(x, self.weight, 1e-5) * 2, r * 1, self.weight, 1e-5)
        packed = torch.cat((out, total), dim=-1)
        query, key = self.turn(positions, silu(packed) * 1, gelu(packed) * 1, 4, 4, self.cache, NEOX)
        result: Tensor = query + key + total
        return result


def inputs(tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, a residual and positions of some tokens."""
    generator = torch.Generator().manual_seed(tokens)
    x, r = (torch.randn(tokens, WIDTH, generator=generator) for _ in range(2))
    return x, r, torch.arange(tokens) % 8


def export(model: nn.Module, *, strict: bool) -> torch.export.ExportedProgram:
    """Export a model for any number of tokens."""
    tokens = torch.export.Dim("tokens")
    return torch.export.export(model, inputs(5), dynamic_shapes=({0: tokens},) * 3, strict=strict)


def calls(program: torch.export.ExportedProgram) -> Counter[Any]:
    """Return how often a program calls each overload of ours."""
    return Counter(node.target for node in program.graph.nodes if "vllm_ir" in str(node.target))


class Compiler:
    """A compiler that lowers each graph and runs it as it is.

    Attributes:
        selected: who runs what, by graph.
    """

    def __init__(self) -> None:
        self.selected: list[dict[str, set[str]]] = []

    def __call__(self, module: torch.fx.GraphModule, _inputs: Any) -> Any:
        """Compile one graph."""
        lowered = lower_graph(module)
        self.selected.append({op: set(nodes.values()) for op, nodes in lowered.selected.items()})
        return module


def by_backend(module: nn.Module, options: dict[str, Any]) -> Any:
    """Compile with torch's own function."""
    return torch.compile(module, backend="vllm_ir", options=options, fullgraph=True, dynamic=True)


def by_function(module: nn.Module, options: dict[str, Any]) -> Any:
    """Compile with ours."""
    return vllm_ir.compile(module, fullgraph=True, dynamic=True, **options)


@pytest.mark.parametrize("strict", [False, True], ids=["not strict", "strict"])
@pytest.mark.parametrize("donates", [False, True], ids=["plain", "donating"])
def test_export_keeps_the_ops(state: Runtime, donates: bool, strict: bool) -> None:
    """Each call is one node, a functional one behind decompositions, and the program runs any number of tokens."""
    assert state is not None
    model = Layer(donates=donates)
    program = export(model, strict=strict)
    decomposed = program.run_decompositions()
    assert calls(program) == (DONATING if donates else ONE_EACH)
    assert calls(decomposed) == ONE_EACH
    for tokens in (1, 2, 64):
        for each in (program, decomposed):
            torch.testing.assert_close(each.module()(*inputs(tokens)), model(*inputs(tokens)), rtol=0, atol=0)


@pytest.mark.parametrize("compile_it", [by_backend, by_function])
@pytest.mark.parametrize("decomposes", [False, True], ids=["exported", "decomposed"])
@pytest.mark.parametrize(("kind", "donates"), [("native", False), ("inplace", False), ("inplace", True)])
def test_an_exported_module_is_compiled(
    provide: Any, kind: str, donates: bool, decomposes: bool, compile_it: Callable[..., Any]
) -> None:
    """What was exported runs the selected providers when it is compiled, in one graph, and leaves its inputs alone."""
    for op in ALL:
        provide(op, kind)
    model, compiler = Layer(donates=donates), Compiler()
    program = export(model, strict=False)
    module = (program.run_decompositions() if decomposes else program).module()
    chosen = {op.name: "native" if kind == "native" else "probe" for op in ALL}
    run = compile_it(module, {"lower_to": compiler, "priority": chosen})
    for tokens in (5, 2, 64):
        given = inputs(tokens)
        with torch.no_grad():
            torch.testing.assert_close(run(*given), model(*inputs(tokens)), rtol=0, atol=0)
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(given, inputs(tokens), strict=True))
    assert compiler.selected == [{op: {provider} for op, provider in chosen.items()}]


ELSEWHERE = """
import sys
import torch
import vllm_ir.ops

program = torch.export.load(sys.argv[1])
module = program.module()
given, wanted = torch.load(sys.argv[2])
print(sorted({str(n.target) for n in program.graph.nodes if "vllm_ir" in str(n.target)}))
print(torch.allclose(module(*given), wanted, rtol=1e-5, atol=1e-5))
from vllm_ir.compile import lower_graph
def lower(graph, _inputs):
    print(sorted(lower_graph(graph).selected))
    return graph
got = torch.compile(module, backend="vllm_ir", options={"lower_to": lower})(*given)
print(torch.allclose(got, wanted, rtol=1e-5, atol=1e-5))
"""


def test_a_saved_program_runs_in_another_process(state: Runtime, tmp_path: Path) -> None:
    """A process that imports nothing of ours but the ops loads the file, runs it, and compiles it."""
    assert state is not None
    model = Layer(donates=True)
    torch.export.save(export(model, strict=False), tmp_path / "layer.pt2")
    torch.save((inputs(7), model(*inputs(7))), tmp_path / "values.pt")
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, "layer.pt2", "values.pt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    names = sorted(op.name for op in ALL)
    assert done.stdout.splitlines() == [
        str(sorted(map(str, DONATING))),
        "True",
        str(names),
        "True",
    ], done.stderr
