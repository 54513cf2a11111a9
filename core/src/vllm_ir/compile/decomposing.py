"""Exported programs: what stands for each op in a table of decompositions, for compilers with passes of their own.

Graphs behind torch.compile are lowered in place; an exported program has a signature that only torch keeps in step, so
there torch is told what each op is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_ir.compile import torch_tracing
from vllm_ir.compile.judging import Judge
from vllm_ir.compile.plan import Plan
from vllm_ir.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._ops import OpOverload

    from vllm_ir.op import IrOp


def decomposition_table(plan: Plan | None = None) -> dict[OpOverload, Callable[..., Any]]:
    """Return what takes each op apart into the implementation that runs it, for `ExportedProgram.run_decompositions`.

    Native becomes operations of torch, a provider its own torch op. An op that is left out of the table stays in the
    program and selects when it runs. Copies of what an in-place kernel writes are made by its functional form.

    Args:
        plan: who may run what; that of the current context, with the orders of graphs that are compiled.

    Returns:
        by the `default` overload of each registered op a function that selects for its fake arguments.

    Raises:
        ConfigurationError: a layer names what does not exist or cannot run.
    """
    found = plan or Plan.take()
    judge = Judge(found)
    return {op.torch_op: _selecting(op, judge, found) for op in found.ops.values()}


def _selecting(op: IrOp, judge: Judge, plan: Plan) -> Callable[..., Any]:
    """Return what runs an op on fake tensors: whoever takes them.

    Args:
        op: the op.
        judge: selects.
        plan: what it goes by.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        """Run the implementation that takes a call."""
        bound = op.bind(args, kwargs)
        impl = judge.select(op, bound, without=(), where="")
        logger.debug("exported program: op %s: %s", op.name, impl.provider)
        function: Callable[..., Any] = impl.func_impl_fn
        if impl.composition is not None:
            function = impl.composition.over(impl.composition.functional(), f"{op.name}_in_parts")
        elif impl.impl_fn is op.declaration.native and (plan.batch_invariant or plan.exact):
            function = op.native_torch_op
        return torch_tracing.functional(function)(*bound)

    return run
