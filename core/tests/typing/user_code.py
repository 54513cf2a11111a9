"""What a user's type checker sees; checked by the test beside it, never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import vllm_ir
from typing_extensions import assert_type
from vllm_ir import IrOpImpl, IrOpPriorityConfig, KernelConfig, Unsupported, errors, ops, prometheus
from vllm_ir.compile.backend import backend
from vllm_ir.kernel_op import TorchOp
from vllm_ir.op import IrOp, IrOpInplace
from vllm_ir.overload import InplaceOverload
from vllm_ir.priority import Entry
from vllm_ir.reporting import OpReport, Report
from vllm_ir.tolerances import Tolerance
from vllm_ir.verdict import Explanation, Verdict

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@vllm_ir.register_op
def bare(x: torch.Tensor) -> torch.Tensor:
    """Be an op by the bare decorator."""
    return x


@vllm_ir.register_op(name="named", activations=["x"], batch_invariant=True)
def with_arguments(x: torch.Tensor) -> torch.Tensor:
    """Be an op by a call of the decorator."""
    return x


@vllm_ir.register_op(allow_inplace=True)
def donating(x: torch.Tensor) -> torch.Tensor:
    """Be an op with maybe_inplace."""
    return x


@vllm_ir.register_op(allow_inplace=False)
def functional(x: torch.Tensor) -> torch.Tensor:
    """Be an op without."""
    return x


def predicate(x: torch.Tensor) -> bool | Unsupported:
    """Refuse with a reason."""
    return x.is_contiguous() or Unsupported("needs contiguous rows")


def not_donating(x: torch.Tensor) -> torch.Tensor:
    """Be the functional form of an in-place implementation."""
    return x.clone()


@vllm_ir.implements(
    "donating",
    provider="fast",
    supports_args=predicate,
    inplace=True,
    functional=not_donating,
    batch_invariant=True,
)
def declared(x: torch.Tensor) -> torch.Tensor:
    """Be a declaration."""
    return x


@donating.register_impl("other", supported=Unsupported("needs a library"))
def registered(x: torch.Tensor) -> torch.Tensor:
    """Be an implementation."""
    return x


def what_is_seen(x: torch.Tensor) -> None:
    """Hold the type of every part of the interface."""
    assert_type(bare, IrOp)
    assert_type(with_arguments, IrOp)
    assert_type(functional, IrOp)
    assert_type(donating, IrOpInplace)
    assert_type(donating.maybe_inplace, InplaceOverload)
    assert_type(declared, IrOpImpl)
    assert_type(registered, IrOpImpl)
    assert_type(ops.rms_norm, IrOp)
    assert_type(ops.fused_add_rms_norm, IrOpInplace)
    assert_type(ops.an_op_of_another_distribution, IrOp)
    assert_type(bare.impls, Mapping[str, IrOpImpl])
    assert_type(bare.activations, list[str])
    assert_type(bare.activation_indices, list[int])
    assert_type(bare.get_priority(), list[str])
    assert_type(bare.supported_providers(), list[str])
    assert_type(bare.dispatch(x), IrOpImpl)
    assert_type(bare.get_tolerance(torch.float32), Tolerance)
    assert_type(bare.apply_arg_defaults((x,)), tuple[Any, ...])
    assert_type(bare.generate_inputs(num_tokens=1), tuple[Any, ...])
    assert_type(bare.set_priority(["a"]), AbstractContextManager[None])
    assert_type(declared.supported, bool | Unsupported)
    assert_type(declared.impl_fn, Callable[..., Any])
    assert_type(declared.functional, Callable[..., Any] | None)
    assert_type(declared.supports_all_args, bool)
    assert_type(declared.supports_args(x), bool | Unsupported)


def what_is_told(x: torch.Tensor) -> None:
    """Hold the types of reports and explanations."""
    assert_type(vllm_ir.explain("bare", x), Explanation)
    assert_type(bare.explain(x, compiling=True), Explanation)
    assert_type(bare.explain(x).selected, str | None)
    assert_type(bare.explain(x).verdicts, tuple[Verdict, ...])
    assert_type(vllm_ir.report(), Report)
    assert_type(vllm_ir.report().ops, Mapping[str, OpReport])
    assert_type(vllm_ir.report().ops["bare"].priority, tuple[Entry, ...])
    assert_type(vllm_ir.report().ops["bare"].calls, Mapping[str, int])
    assert_type(vllm_ir.report().ops["bare"].refusals, tuple[tuple[str, str, int], ...])


def what_is_compared(group: ProcessGroup) -> None:
    """Hold the types of what ranks and operators ask."""
    assert_type(vllm_ir.selection_digest(), str)
    vllm_ir.verify_agreement()
    vllm_ir.verify_agreement(group)
    prometheus.register_collector(interval=1)
    prometheus.publish()
    try:
        vllm_ir.verify_agreement(group=None)
    except errors.SelectionsDiffer as error:
        assert_type(error.differences, tuple[tuple[str, str], ...])
        assert_type(error.ranks, int)


def what_is_compiled(x: torch.Tensor) -> None:
    """Hold that a compiled model has the model's own type, by each way of compiling, and that options have types."""
    assert_type(vllm_ir.compile(torch.nn.Linear(1, 1)), torch.nn.Linear)
    assert_type(vllm_ir.compile(function_of_a_model, exact=True, dynamic=None)(x), torch.Tensor)
    assert_type(decorated(x), torch.Tensor)
    assert_type(decorated_with_arguments(x), torch.Tensor)
    vllm_ir.compile(priority={"rms_norm": ["a"]}, options={"max_autotune": True}, mode="default")(torch.nn.ReLU())
    vllm_ir.compile(function_of_a_model, priority=IrOpPriorityConfig(rms_norm="a"), passes=[], lower_to="inductor")
    torch.compile(function_of_a_model, backend=backend)


def function_of_a_model(x: torch.Tensor) -> torch.Tensor:
    """Be a function to compile."""
    return x


@vllm_ir.compile
def decorated(x: torch.Tensor) -> torch.Tensor:
    """Be a compiled function."""
    return x


@vllm_ir.compile(lower_to=lambda module, _inputs: module, fullgraph=True)
def decorated_with_arguments(x: torch.Tensor) -> torch.Tensor:
    """Be one with another compiler."""
    return x


def what_is_configured(arguments: list[str]) -> None:
    """Hold the types of configurations and scopes, and that a `with` swallows no exception."""
    assert_type(IrOpPriorityConfig.from_arguments(arguments), tuple[IrOpPriorityConfig, list[str]])
    assert_type(IrOpPriorityConfig(rms_norm=["a"], silu_and_mul="b,c").rms_norm, tuple[str, ...])
    assert_type(KernelConfig({"rms_norm": ["a"]}).ir_op_priority, IrOpPriorityConfig)
    bare.set_default("a,b")
    bare.set_default(("a", "b"))
    with bare.set_priority("a") as nothing:
        assert_type(nothing, None)
    with vllm_ir.enable_torch_wrap(enable=False), IrOpPriorityConfig.from_text("rms_norm=a").set_priority():
        pass
    assert_type(after_a_scope(), int)


def after_a_scope() -> int:
    """Return from inside a scope; a checker that took the scope for one that swallows would miss a return."""
    with bare.set_priority(["a"]):
        return 1


def what_a_tracer_gets(x: torch.Tensor) -> None:
    """Hold the types of a kernel as a torch op: any op's, so its results are anything."""
    made = vllm_ir.make_torch_op(donating, not_donating, namespace="fast", device_types=["cpu"], writes=["x"])
    assert_type(made, TorchOp)
    assert_type(vllm_ir.make_torch_op("bare", not_donating, namespace="fast", fake=not_donating), TorchOp)
    assert_type(made.name, str)
    assert_type(made(x), Any)
    assert_type(made.donating(x), Any)


def what_is_caught() -> str | None:
    """Hold the types of an error's facts."""
    try:
        bare()
    except errors.NoImplementation as error:
        assert_type(error.op, str)
        assert_type(error.refusals, tuple[tuple[str, str], ...])
    except errors.UnknownProvider as error:
        assert_type(error.op, str | None)
        assert_type(error.known, tuple[str, ...])
        return error.layer
    return None
