"""The hooks of the providers `native` and `unfused`: the core enters by the same door as every other distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_ir.names import RESERVED
from vllm_ir.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from vllm_ir.implementation import IrOpImpl
    from vllm_ir.op import IrOp
    from vllm_ir.platforms import Platform


@hookimpl
def vllm_ir_ops() -> list[IrOp]:
    """Return the core's ops."""
    from vllm_ir import ops

    return [getattr(ops, name) for name in ops.__all__]


@hookimpl
def vllm_ir_implementations(platform: Platform) -> list[IrOpImpl]:  # noqa: ARG001 - native runs wherever torch does
    """Return what the core's ops have of their own: native functions, and parts."""
    return [op.impls[name] for op in vllm_ir_ops() for name in RESERVED if name in op.impls]
