"""A short way from a function to what fusions made of its graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch
import vllm_ir
from vllm_ir.compile import GraphPass, lower_graph, print_graph

from core.tests.compile.passes.decoder_parts import TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm_ir.graphs import GraphRecord, PassRecord
    from vllm_ir.runtime import Runtime


class Printing(GraphPass):
    """Keeps the text of the graph as it comes by.

    Attributes:
        before: names of passes that it goes before.
        after: names of passes that it goes behind.
    """

    def __init__(self, texts: list[str], *, before: Sequence[str] = (), after: Sequence[str] = ()) -> None:
        self.before = tuple(before)
        self.after = tuple(after)
        self._texts = texts

    def apply(self, graph: torch.fx.Graph) -> int:
        """Keep it."""
        self._texts.append(print_graph(graph))
        return 0


@dataclass
class Fuser:
    """Compiles functions with fusions, through torch's own interpreter, and holds the results against eager.

    Attributes:
        modules: the graphs with the ops in them, behind all passes, newest last.
        texts: each graph before and behind the passes.
    """

    modules: list[torch.fx.GraphModule] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __call__(
        self,
        function: Callable[..., Any],
        *args: Any,
        fusions: Sequence[str] | str = (),
        passes: Sequence[GraphPass] = (),
        dynamic: bool = False,
        training: bool = False,
        lowered: bool = True,
        **options: Any,
    ) -> Any:
        """Return what the compiled function returns; with `dynamic` first sizes above one are open."""

        def lower(module: torch.fx.GraphModule, _: Any) -> Any:
            """Keep the graph, and lower it."""
            self.modules.append(module)
            if lowered:
                lower_graph(module)
            return module

        torch._dynamo.reset()
        # Copies, since what is marked stays marked; strides stay, too.
        args = tuple(map(_fresh, args))
        names = ("qk_norm_rope", "noop_removal", "add_norm", "norm_quant", "activation_quant")
        own = [each.name for each in passes]
        printing = [Printing(self.texts, before=(*own, *names)), Printing(self.texts, after=(*own, *names))]
        compiled = vllm_ir.compile(
            function, passes=[printing[0], *passes, printing[1]], fusions=fusions, lower_to=lower, **options
        )
        if dynamic:
            for tensor in args:
                if isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.shape[0] == TOKENS:
                    torch._dynamo.mark_dynamic(tensor, 0)
        with torch.set_grad_enabled(training):
            return compiled(*args)

    @property
    def record(self) -> GraphRecord:
        """What is remembered of the newest graph."""
        return vllm_ir.report().graphs[-1]

    def ran(self, name: str) -> PassRecord:
        """Return what a pass did to the newest graph."""
        (found,) = [each for each in self.record.passes if each.name == name]
        return found


def _fresh(value: Any) -> Any:
    """Return an argument in memory of its own, lying there as it did."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.detach())
    return copy.requires_grad_(value.requires_grad)


def same_bits(got: Any, wanted: Any) -> bool:
    """Tell whether results are the same bit for bit; torch compares no 8-bit floats."""
    if isinstance(wanted, (tuple, list)):
        return len(got) == len(wanted) and all(map(same_bits, got, wanted))
    if got.dtype != wanted.dtype or got.shape != wanted.shape:
        return False
    one, other = (each.view(torch.uint8) if each.element_size() == 1 else each for each in (got, wanted))
    return torch.equal(one, other)


@pytest.fixture
def fuser(state: Runtime) -> Fuser:
    """Return what compiles functions with fusions."""
    assert state is not None
    return Fuser()
