"""A small program of two ops, the same on native functions, and Inductor as far as AOTAutograd."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from vllm_ir import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.runtime import Runtime

rms: Any = ops.rms_norm
fused: Any = ops.fused_add_rms_norm


@pytest.fixture(autouse=True)
def uncached(state: Runtime) -> Iterator[None]:
    """Compile everything anew, in a process state of the test's own."""
    assert state is not None
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


class Recorder:
    """Inductor as far as AOTAutograd, for tests that need no code: it keeps each graph and runs it as it is.

    Attributes:
        graphs: those that Inductor would make code of.
    """

    def __init__(self, table: Callable[[], dict[Any, Any]] | None = None) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self._table = table

    def __call__(self, module: torch.fx.GraphModule, example: Any) -> Any:
        """Compile one graph of Dynamo's."""
        from torch._functorch._aot_autograd.utils import make_boxed_func
        from torch._inductor.compile_fx import compile_fx

        def inner(graph: torch.fx.GraphModule, *_args: Any, **_options: Any) -> Any:
            """Keep what Inductor would compile."""
            self.graphs.append(graph)
            return make_boxed_func(graph.forward)

        table = None if self._table is None else self._table()
        return compile_fx(module, example, inner_compile=inner, decompositions=table)

    @property
    def calls(self) -> list[list[Any]]:
        """The ops of ours that each graph calls."""
        return [
            [node.target for node in graph.graph.nodes if str(node.target).startswith("vllm_ir")]
            for graph in self.graphs
        ]


class Plain:
    """Programs, and what becomes of them."""

    Recorder = Recorder

    @staticmethod
    def inputs(tokens: int = 5) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows, a residual and a weight."""
        return torch.randn(tokens, 16), torch.randn(tokens, 16), torch.rand(16) + 0.5

    @staticmethod
    def layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Run an op, and one that is donated two intermediate tensors."""
        out, total = fused.maybe_inplace(rms(x, w, 1e-5) * 2, r * 1, w, 1e-5)
        return out + 1, total

    @staticmethod
    def native_layer(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Do the same with the native functions."""
        out, total = fused.declaration.native(rms.declaration.native(x, w, 1e-5) * 2, r * 1, w, 1e-5)
        return out + 1, total

    @staticmethod
    def recorded(run: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[Any]]:
        """Return the result of a compiled function, and the ops that are left in its graph."""
        recorder = Recorder()
        with torch.no_grad():
            result = torch.compile(run, fullgraph=True, backend=recorder, **options)(*args)
        (calls,) = recorder.calls
        return result, calls


@pytest.fixture
def plain() -> type[Plain]:
    """Return programs, and a way to their graphs."""
    return Plain
