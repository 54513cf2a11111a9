"""Graphs: from ops to the implementations that run, behind torch.compile; called, it compiles a model.

`vllm_ir.compile(model, ...)` is `function.compile_model`. `backend` is what torch.compile calls, `plan` what a
compilation goes by, `pipeline` the order of the stages: `functionalization` before AOTAutograd, `passes` on the
functional graph, `lowering` last, where `clones` and `aliases` decide what may be written in place. Nothing here
imports Inductor before a graph is compiled.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm_ir.compile.function import compile_model


class _Package(types.ModuleType):
    """A package that is at once the public function of its name."""

    if TYPE_CHECKING:
        __call__ = staticmethod(compile_model)
    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Compile a model; brought in when it is first called, so that the package stays light."""
            from vllm_ir.compile.function import compile_model

            return compile_model(*args, **kwargs)

        @property
        def __signature__(self) -> Any:
            """The signature of the function, for help and completion."""
            import inspect

            from vllm_ir.compile.function import compile_model

            return inspect.signature(compile_model)


sys.modules[__name__].__class__ = _Package
