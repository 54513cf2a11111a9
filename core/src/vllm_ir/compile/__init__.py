"""Graphs: from ops to the implementations that run, behind torch.compile; called, it compiles a model.

`vllm_ir.compile(model, ...)` is `function.compile_model`. `backend` is what torch.compile calls, `plan` what a
compilation goes by, `pipeline` the order of the stages: `functionalization` before AOTAutograd, `passes` on the
functional graph, `lowering` last, where `clones` and `aliases` decide what may be written in place. Nothing here
imports Inductor before a graph is compiled.
"""

from __future__ import annotations

import sys
import types
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vllm_ir.compile.decomposing import decomposition_table
    from vllm_ir.compile.function import compile_model
    from vllm_ir.compile.lower_to import lower_graph
    from vllm_ir.compile.passes import fusions
    from vllm_ir.compile.passes.async_tp import AsyncTensorParallelism
    from vllm_ir.compile.passes.base import GraphPass
    from vllm_ir.compile.passes.fusion import Fusion, FusionGroup
    from vllm_ir.compile.passes.sequence_parallel import SequenceParallelism
    from vllm_ir.compile.printing import print_graph

__all__ = [
    "AsyncTensorParallelism",
    "Fusion",
    "FusionGroup",
    "GraphPass",
    "SequenceParallelism",
    "decomposition_table",
    "fusions",
    "lower_graph",
    "print_graph",
]

_HOMES: Final = {
    "AsyncTensorParallelism": "vllm_ir.compile.passes.async_tp",
    "Fusion": "vllm_ir.compile.passes.fusion",
    "FusionGroup": "vllm_ir.compile.passes.fusion",
    "GraphPass": "vllm_ir.compile.passes.base",
    "SequenceParallelism": "vllm_ir.compile.passes.sequence_parallel",
    "decomposition_table": "vllm_ir.compile.decomposing",
    "fusions": "vllm_ir.compile.passes",
    "lower_graph": "vllm_ir.compile.lower_to",
    "print_graph": "vllm_ir.compile.printing",
}
"""The module of each public name."""


class _Package(types.ModuleType):
    """A package that is at once the public function of its name."""

    if TYPE_CHECKING:
        __call__ = staticmethod(compile_model)
    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Compile a model; brought in when it is first called, so that the package stays light.

            Raises:
                UnknownCompileArgument: it has no argument of a name, or was given more than the model by position.
            """
            from vllm_ir.compile.function import check_call, compile_model

            check_call(args, kwargs)
            return compile_model(*args, **kwargs)

        @property
        def __signature__(self) -> Any:
            """The signature of the function, for help and completion."""
            import inspect

            from vllm_ir.compile.function import compile_model

            return inspect.signature(compile_model)


if not TYPE_CHECKING:
    # A checker that saw this would take every misspelt name for one that exists.

    def __getattr__(name: str) -> Any:
        """Bring in a public name."""
        if name not in _HOMES:
            raise AttributeError(f"module 'vllm_ir.compile' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


sys.modules[__name__].__class__ = _Package
