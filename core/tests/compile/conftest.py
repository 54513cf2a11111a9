"""Providers whose kernels can be put into graphs, and a short way from a function to its lowered graph."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_ir import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_ir.op import IrOp
    from vllm_ir.runtime import Runtime


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Forget what Dynamo compiled for another test, and compile nothing from a cache."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def provide(state: Runtime) -> Callable[..., None]:
    """Return a function that registers provider `probe` for an op, with native's values, of one of four kinds.

    `inplace` writes its results over the activations, `functional` makes new tensors, `both` has both forms, and
    `native` is none at all. The in-place kernel destroys an activation before it writes the last result, so that one
    that lies under another is seen.
    """
    assert state is not None

    def register(op: IrOp, kind: str, name: str = "probe") -> None:
        """Register a provider of that name."""
        native = op.declaration.native
        if kind == "native":
            return
        if kind == "functional" or not op.allow_inplace:
            op.register_impl(name)(native)
            return
        indices = op.activation_indices

        def inplace(*args: Any) -> Any:
            """Write native's results over the activations and return those."""
            results = native(*args)
            several = isinstance(results, tuple)
            written = [args[index] for index in indices]
            for tensor in written:
                tensor.fill_(-77.0)
            for tensor, result in zip(written, results if several else (results,), strict=True):
                tensor.copy_(result)
            return tuple(written) if several else written[0]

        functional = native if kind == "both" else None
        op.register_impl(name, inplace=True, functional=functional)(functools.wraps(native)(inplace))

    return register


@dataclass
class Lowerer:
    """Compiles functions and keeps the graphs that came of them.

    Attributes:
        graphs: lowered graphs, newest last.
        lowered: what became of their ops.
    """

    graphs: list[torch.fx.GraphModule] = field(default_factory=list)
    lowered: list[Any] = field(default_factory=list)

    def lower(self, module: torch.fx.GraphModule, inputs: Any) -> Any:
        """Lower a graph and let torch run it node by node."""
        from vllm_ir.compile.lower_to import lower_graph

        assert inputs is not None
        self.lowered.append(lower_graph(module))
        module.graph.lint()
        self.graphs.append(module)
        return module

    def __call__(
        self,
        function: Any,
        *,
        dynamic: bool = False,
        inductor: bool = False,
        provider: str | None = "probe",
        exact: bool = False,
    ) -> Any:
        """Return the compiled function; where the provider has no implementation of an op, native runs it."""
        from vllm_ir.compile.backend import backend

        options: dict[str, Any] = {"exact": exact} if inductor else {"lower_to": self.lower, "exact": exact}
        if provider is not None:
            options["priority"] = {op.name: provider for op in runtime.current().registry if provider in op.impls}
        return torch.compile(function, backend=backend, options=options, fullgraph=True, dynamic=dynamic)

    def count(self, target: Any, graph: int = -1) -> int:
        """Return how many nodes of a lowered graph call something."""
        return sum(node.target is target for node in self.graphs[graph].graph.nodes)


@pytest.fixture
def compiled() -> Lowerer:
    """Return what compiles functions and keeps their graphs."""
    return Lowerer()
